"""The only way out of a device's network leads to one address."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.system.in_image import script

relay = script("relay")


@asynccontextmanager
async def _standing() -> AsyncIterator[tuple[int, str]]:
    """A server that says one line back, and a relay to it: the relay's port, and the server's address."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    door = await asyncio.start_server(relay.Relay(address).serve, "127.0.0.1", 0)
    async with server, door:
        yield door.sockets[0].getsockname()[1], address


async def _say(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:  # it closes with something unread
        return b""
    finally:
        writer.close()


def test_the_servers_address_is_connected_to() -> None:
    async def play() -> bytes:
        async with _standing() as (port, address):
            return await _say(
                port, f"CONNECT {address} HTTP/1.1\r\nhost: x\r\n\r\nhello\n".encode()
            )

    assert asyncio.run(play()) == b"HTTP/1.1 200 OK\r\n\r\nhello\n"


@pytest.mark.parametrize(
    "line",
    [
        "CONNECT 192.0.2.1:80 HTTP/1.1",
        "CONNECT {address}1 HTTP/1.1",
        "CONNECT x@{address} HTTP/1.1",
        "CONNECT  {address} HTTP/1.1",
        "GET http://{address}/ HTTP/1.1",
        "connect",
        "",
    ],
)
def test_nothing_else_is(line: str) -> None:
    async def play() -> bytes:
        async with _standing() as (port, address):
            return await _say(port, (line.format(address=address) + "\r\n\r\n").encode())

    assert asyncio.run(play()).startswith(b"HTTP/1.1 403 ")


def test_a_head_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_PATIENCE", 0.2)

    async def play() -> list[bytes]:
        async with _standing() as (port, _):
            return [await _say(port, b"CONNECT "), await _say(port, b"x" * 10_000)]

    assert asyncio.run(play()) == [b"", b""]


def test_there_are_so_many_connections_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MOST", 2)

    async def play() -> bytes:
        async with _standing() as (port, address):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            said = await _say(port, f"CONNECT {address} HTTP/1.1\r\n\r\nhello\n".encode())
            for _, writer in silent:
                writer.close()
            return said

    assert asyncio.run(play()) == b""
