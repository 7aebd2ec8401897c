"""The only way out of a device's network: `relay.py HOST:PORT` is an HTTP proxy that connects to this one address, and
refuses every other (CONNECT, RFC 9110, 9.3.6). It sees what an observer of the line sees: TLS."""

from __future__ import annotations

import asyncio
import contextlib
import sys

PORT = 3128
MOST = 64  # connections; a node needs about four
_PATIENCE = 10.0
_PART = 2**16


class Relay:
    """Passes connections on to `allowed`."""

    def __init__(self, allowed: str) -> None:
        host, _, port = allowed.rpartition(":")
        self._allowed = allowed.lower()
        self._address = host.strip("[]"), int(port)
        self._open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        self._open += 1
        try:
            if self._open > MOST:
                return
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
            if not self._allows(head):
                writer.write(b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\n\r\n")
                await writer.drain()
                return
            try:
                async with asyncio.timeout(_PATIENCE):
                    there, back = await asyncio.open_connection(*self._address)
            except OSError:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\n\r\n")
                await writer.drain()
                return
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await _both_ways((reader, writer), (there, back))
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # the caller left, or speaks something else
        finally:
            self._open -= 1
            writer.close()

    def _allows(self, head: bytes) -> bool:
        words = head.split(b"\r\n")[0].decode("latin-1").split(" ")
        return words[0] == "CONNECT" and [word.lower() for word in words[1:2]] == [self._allowed]


async def _both_ways(
    here: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Pass bytes on until one side ends."""
    ways = [
        asyncio.create_task(_one_way(here[0], there[1])),
        asyncio.create_task(_one_way(there[0], here[1])),
    ]
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    there[1].close()
    for way in ways:
        way.cancel()
    await asyncio.gather(*ways, return_exceptions=True)


async def _one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(_PART):
            writer.write(part)
            await writer.drain()


async def main(allowed: str) -> None:
    """Listen until stopped."""
    server = await asyncio.start_server(Relay(allowed).serve, "0.0.0.0", PORT)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
