"""`fedsketch-gate`: the address that devices connect to. It passes on Flower's Fleet API to the SuperLink, and nothing
else.

A SuperLink serves three APIs on one port: Fleet (what SuperNodes call), Control (submit runs, register nodes) and
Runtime (act as the ServerApp). Only the first one authenticates its callers. Whoever reaches the others can send their
own code to every device. So devices connect to this gate, and only the operator can reach the SuperLink itself. Node
authentication still works, because Flower signs requests, not connections.
"""

from __future__ import annotations

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

from fedsketch.command_line import Parser, run_command
from fedsketch.errors import UsageError

# The whole path, character by character, so that no other parser can read it differently.
_FLEET = re.compile(r"/v1/fleet/[a-z-]+")
# Headers of one connection, like those that `Connection` names (RFC 9110, 7.6.1); host and length are set again.
_OF_A_CONNECTION = {
    b"connection",
    b"content-length",
    b"host",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_MIB = 2**20
# Flower sends arrays in parts of 5 MiB, one part per request, however large the model is; other requests are smaller.
LARGEST_REQUEST = 16
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]+)", re.ASCII)


class _TooLarge(Exception):
    """A request has more bytes than the gate allows."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script: serves until it is stopped; returns 1 after one sentence on stderr if it cannot start."""
    return run_command(_parser(), arguments, _serve)


def _serve(asked: argparse.Namespace) -> None:
    _check_address(asked.superlink)
    port = _number("--port", asked.port, 65535)
    largest = _number("--largest-request", asked.largest_request, 2048)
    try:
        trusted = ssl.create_default_context(cafile=asked.root_certificates)
        client = httpx.AsyncClient(
            base_url=f"https://{asked.superlink}", verify=trusted, timeout=_TIMEOUT, trust_env=False
        )
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            asked.ssl_certfile, asked.ssl_keyfile
        )
    except (OSError, ssl.SSLError, httpx.InvalidURL) as error:
        raise UsageError(f"certificates or address cannot be used ({error}).") from error
    uvicorn.run(
        gate(client, largest * _MIB),
        host=asked.host,
        port=port,
        ssl_certfile=asked.ssl_certfile,
        ssl_keyfile=asked.ssl_keyfile,
        log_level="warning",
    )


def _parser() -> Parser:
    parser = Parser(
        prog="fedsketch-gate",
        description="Let devices reach a SuperLink's Fleet API, and nothing else of it.",
    )
    parser.add_argument(
        "--superlink", required=True, metavar="HOST:PORT", help="where the SuperLink is"
    )
    parser.add_argument(
        "--root-certificates", required=True, metavar="FILE", help="who signed its certificate"
    )
    parser.add_argument(
        "--ssl-certfile", required=True, metavar="FILE", help="certificate shown to devices"
    )
    parser.add_argument("--ssl-keyfile", required=True, metavar="FILE", help="its key")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", default="8000", help="port to listen on (8000)")
    parser.add_argument(
        "--largest-request",
        default=str(LARGEST_REQUEST),
        metavar="MIB",
        help=f"size of the largest request that passes ({LARGEST_REQUEST} MiB)",
    )
    return parser


def _check_address(superlink: str) -> None:
    address = _ADDRESS.fullmatch(superlink)
    if not address or not 1 <= int(address[1][:9]) <= 65535:
        raise UsageError(f"--superlink is HOST:PORT, such as 127.0.0.1:8000, not {superlink!r}.")


def _number(option: str, text: str, most: int) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise UsageError(f"{option} is a whole number from 1 to {most}, not {text!r}.")
    return int(text)


def gate(client: httpx.AsyncClient, largest: int = LARGEST_REQUEST * _MIB) -> Starlette:
    """Return the web application in front of the SuperLink that `client` is connected to. Requests above `largest`
    bytes are refused."""

    async def fleet(request: Request) -> Response:
        if not _FLEET.fullmatch(request.scope["raw_path"].decode("latin-1")):
            return PlainTextResponse("Devices have no business here.", 404)
        try:
            return await _passed_on(client, request, largest)
        except _TooLarge:
            # We do not wait for the rest of the body.
            said = f"A request has at most {largest} bytes here."
            return PlainTextResponse(said, 413, {"connection": "close"})

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


async def _passed_on(client: httpx.AsyncClient, request: Request, largest: int) -> Response:
    """Pass on a request and its reply. Both bodies are streamed, because a message may not fit into this process's
    memory."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > largest:
        raise _TooLarge
    passed = client.build_request(
        "POST",
        request.scope["raw_path"].decode("latin-1"),
        headers=_kept(request.headers.raw),
        content=_limited(request.stream(), largest),
    )
    try:
        answer = await client.send(passed, stream=True)
    except httpx.TransportError:  # Flower's nodes retry after this status code
        return PlainTextResponse("The SuperLink does not answer.", 502)
    response = StreamingResponse(
        answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose)
    )
    response.raw_headers = _kept(answer.headers.raw)
    return response


async def _limited(body: AsyncIterator[bytes], largest: int) -> AsyncIterator[bytes]:
    """Yield the body, part by part. A body that is too large is broken off, so that the SuperLink never gets all of
    it."""
    passed = 0
    async for piece in body:
        passed += len(piece)
        if passed > largest:
            raise _TooLarge
        yield piece


def _kept(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    named = {
        option.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for option in value.split(b",")
    }
    dropped = _OF_A_CONNECTION | named
    return [(name, value) for name, value in headers if name.lower() not in dropped]


if __name__ == "__main__":
    sys.exit(main())
