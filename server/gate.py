"""`fedsketch-gate`: the door for devices. It passes Flower's Fleet API on to the SuperLink, and nothing else.

A SuperLink serves three APIs on one port: Fleet (what SuperNodes call), Control (submit runs, register nodes) and Runtime (be the
ServerApp). Only the first asks who is calling. Whoever reaches the others can send code of his own to every device, so devices get
this door, and only the operator reaches the SuperLink itself. Node authentication passes through: requests are signed, not connections.
"""

import argparse
import re
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

# The whole path, letter by letter: nothing that a second parser could read otherwise.
_FLEET = re.compile(r"/v1/fleet/[a-z-]+")
# They belong to one connection (RFC 9110, 7.6.1); host and length are written anew.
_OF_A_CONNECTION = {
    b"connection",
    b"content-length",
    b"host",
    b"keep-alive",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script: serves until it is stopped; 1 with one sentence on stderr if it cannot begin."""
    asked = _parser().parse_args(arguments)
    try:
        trusted = ssl.create_default_context(cafile=asked.root_certificates)
        client = httpx.AsyncClient(
            base_url=f"https://{asked.superlink}", verify=trusted, timeout=_TIMEOUT, trust_env=False
        )
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            asked.ssl_certfile, asked.ssl_keyfile
        )
    except (OSError, ssl.SSLError, httpx.InvalidURL) as error:
        print(f"fedsketch-gate: certificates or address cannot be used ({error}).", file=sys.stderr)
        return 1
    uvicorn.run(
        gate(client),
        host=asked.host,
        port=asked.port,
        ssl_certfile=asked.ssl_certfile,
        ssl_keyfile=asked.ssl_keyfile,
        log_level="warning",
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedsketch-gate",
        description="Let devices reach a SuperLink's Fleet API, and nothing else of it.",
    )
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT")
    parser.add_argument("--root-certificates", required=True, metavar="FILE")
    parser.add_argument("--ssl-certfile", required=True, metavar="FILE")
    parser.add_argument("--ssl-keyfile", required=True, metavar="FILE")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    return parser


def gate(client: httpx.AsyncClient) -> Starlette:
    """The application, in front of the SuperLink that the client talks to."""

    async def fleet(request: Request) -> Response:
        if not _FLEET.fullmatch(request.scope["raw_path"].decode("latin-1")):
            return PlainTextResponse("Devices have no business here.", 404)
        return await _passed_on(client, request)

    async def health(_: Request) -> Response:
        return Response()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    return Starlette(
        routes=[Route("/health", health), Route("/v1/fleet/{call}", fleet, methods=["POST"])],
        lifespan=lifespan,
    )


async def _passed_on(client: httpx.AsyncClient, request: Request) -> Response:
    """Both bodies stream: a message may be larger than what this process should hold."""
    passed = client.build_request(
        "POST",
        request.scope["raw_path"].decode("latin-1"),
        headers=_kept(request.headers.raw),
        content=request.stream(),
    )
    try:
        answer = await client.send(passed, stream=True)
    except httpx.TransportError:  # Flower's nodes try again after this code
        return PlainTextResponse("The SuperLink does not answer.", 502)
    response = StreamingResponse(
        answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose)
    )
    response.raw_headers = _kept(answer.headers.raw)
    return response


def _kept(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in _OF_A_CONNECTION]


if __name__ == "__main__":
    sys.exit(main())
