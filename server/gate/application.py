"""The web application: which requests pass, and what of them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fedsketch.server.gate.guests import Body, Guest, Guests, OutOfMemory, address_of
from fedsketch.server.gate.limits import Limits
from fedsketch.server.gate.pace import Pace

_log = logging.getLogger(__name__)
# The whole path, character by character, so that no other parser can read it differently.
_FLEET = re.compile(r"/v1/fleet/[a-z-]+")
# All that Flower's nodes send and need. So nothing passes that names another sender (forwarded, x-forwarded-for,
# x-real-ip) or another path, and no header of one connection (RFC 9110, 7.6.1).
_FROM_DEVICES = re.compile(
    rb"content-type|accept|accept-encoding|user-agent|(?:x-)?flwr-[a-z0-9-]+"
)
# What ends at the gate of the SuperLink's answers: headers of one connection, and what says which software it is.
_NOT_TO_DEVICES = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-connection",
    b"server",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
_PART = 2**16
_AGAIN = 503  # a code after which Flower's nodes try again


class _Refused(Exception):
    """A request ends here, with this code and sentence."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code, self.sentence = code, sentence


def gate(client: httpx.AsyncClient, guests: Guests | None = None) -> Starlette:
    """Return the web application in front of the SuperLink that `client` is connected to."""
    who = guests if guests is not None else Guests(Limits())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    return Starlette(
        routes=[
            Route("/health", _Health(client, who.limits), methods=["GET"]),
            Route("/v1/fleet/{call}", _Fleet(client, who), methods=["POST"]),
        ],
        lifespan=lifespan,
    )


class _Health:
    """Whether requests get through: asks the SuperLink over a connection from the pool that all requests use."""

    def __init__(self, client: httpx.AsyncClient, limits: Limits) -> None:
        self._client, self._limits = client, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._limits.health):
                code = (await self._client.get("/health")).status_code
        except (httpx.HTTPError, TimeoutError):
            code = _AGAIN
        await Response(status_code=200 if code == 200 else _AGAIN)(scope, receive, send)


class _Fleet:
    """A call of the Fleet API. Its body is read before it takes a connection to the SuperLink."""

    def __init__(self, client: httpx.AsyncClient, guests: Guests) -> None:
        self._client, self._guests = client, guests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = address_of(scope.get("client"))
        try:
            with self._guests.request(address) as (guest, body):
                await self._pass_on(Request(scope, receive), guest, body, send)
        except ClientDisconnect:
            return
        except _Refused as refused:
            if refused.code != 404:
                _log.warning("Refused a request from %s: %s", address, refused.sentence)
            # We do not wait for the rest of the body.
            said = PlainTextResponse(refused.sentence, refused.code, {"connection": "close"})
            await said(scope, receive, send)

    async def _pass_on(self, request: Request, guest: Guest, body: Body, send: Send) -> None:
        path = request.scope["raw_path"].decode("latin-1")
        if not _FLEET.fullmatch(path):
            raise _Refused(404, "Devices have no business here.")
        await self._read(request, body)
        passed = self._client.build_request(
            "POST",
            path,
            headers=[
                *((n, v) for n, v in request.headers.raw if _FROM_DEVICES.fullmatch(n.lower())),
                (b"content-length", str(len(body.content)).encode()),
            ],
            content=_parts(body.content),
        )
        async with _turn(guest, self._guests.limits):
            try:
                answer = await self._client.send(passed, stream=True)
            except httpx.TransportError as error:
                raise _Refused(502, "The SuperLink does not answer.") from error
            try:
                await self._reply(answer, send)
            finally:
                await answer.aclose()

    async def _read(self, request: Request, body: Body) -> None:
        limits = self._guests.limits
        too_large = _Refused(413, f"A request has at most {limits.largest_request} bytes here.")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limits.largest_request:
            raise too_large
        pieces, pace = aiter(request.stream()), Pace(limits)
        try:
            while (piece := await pace.wait(anext(pieces, None))) is not None:
                if len(body.content) + len(piece) > limits.largest_request:
                    raise too_large
                body.add(piece)
                pace.moved(len(piece))
        except TimeoutError as error:
            raise _Refused(_AGAIN, "The body of the request came too slowly.") from error
        except OutOfMemory as error:
            raise _Refused(_AGAIN, "There is no room for another request now.") from error

    async def _reply(self, answer: httpx.Response, send: Send) -> None:
        pace = Pace(self._guests.limits)
        headers = [(n, v) for n, v in answer.headers.raw if _passes_back(n, answer.headers)]
        start = {"type": "http.response.start", "status": answer.status_code, "headers": headers}
        try:
            await send(start)
            async for piece in answer.aiter_raw(_PART):
                part = {"type": "http.response.body", "body": piece, "more_body": True}
                await pace.wait(send(part))
                pace.moved(len(piece))
            await pace.wait(send({"type": "http.response.body"}))
        except (httpx.TransportError, TimeoutError):
            return  # uvicorn closes the connection of an unfinished reply


@asynccontextmanager
async def _turn(guest: Guest, limits: Limits) -> AsyncIterator[None]:
    """One of the address's turns at the SuperLink, so that no address takes all connections to it."""
    try:
        async with asyncio.timeout(limits.turn):
            await guest.turns.acquire()
    except TimeoutError as error:
        raise _Refused(_AGAIN, "Too many requests of this address wait.") from error
    try:
        yield
    finally:
        guest.turns.release()


async def _parts(content: bytearray) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _PART):
        yield bytes(content[start : start + _PART])


def _passes_back(name: bytes, headers: httpx.Headers) -> bool:
    named = [option.strip().lower() for option in headers.get("connection", "").split(",")]
    lower = name.lower()
    return lower not in _NOT_TO_DEVICES and lower.decode("latin-1") not in named
