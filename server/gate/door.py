"""Connections, before and after their TLS handshake. uvicorn counts neither addresses nor silent connections, so this
comes before it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedsketch.server.gate.guests import Guests, address_of

_log = logging.getLogger(__name__)


class Entrance(asyncio.Protocol):
    """A connection that has not said anything yet. It is counted, or refused at the cost of one system call; then
    follows the TLS handshake, which has a deadline."""

    def __init__(self, guests: Guests, tls: ssl.SSLContext, **of_uvicorn: Any) -> None:
        self._guests, self._tls = guests, tls
        self._of_uvicorn = {name: value for name, value in of_uvicorn.items() if name != "_loop"}
        self._handshake: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        address = address_of(transport.get_extra_info("peername"))
        if not self._guests.connect(address):
            _log.warning("%s has too many connections: refused one.", address)
            transport.abort()
            return
        transport.pause_reading()  # until the handshake reads
        self._handshake = asyncio.get_running_loop().create_task(self._open(transport, address))

    async def _open(self, transport: asyncio.Transport, address: str) -> None:
        head = self._guests.limits.head
        inside = LimitedConnection(
            head, lambda: self._guests.disconnect(address), **self._of_uvicorn
        )
        try:
            secure = await asyncio.get_running_loop().start_tls(
                transport,
                inside,
                self._tls,
                server_side=True,
                ssl_handshake_timeout=head,
                ssl_shutdown_timeout=head,  # for what is left to send, too
            )
            assert isinstance(secure, asyncio.Transport)
            inside.connection_made(secure)
        except OSError:  # the caller left, speaks no TLS, or is too slow
            transport.abort()
            inside.release()


class LimitedConnection(H11Protocol):
    """A connection after its handshake. Whoever does not send the head of a request in time is cut off."""

    def __init__(self, head: float, leave: Callable[[], None], **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._head, self._leave = head, leave
        self._left = False
        self._early = b""
        self._due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()
        if self._early:
            self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:  # came with the end of the handshake
            self._early += data
            return
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_waiting()
        self.release()
        if self.transport is not None:
            super().connection_lost(error)

    def release(self) -> None:
        """Count the connection no more."""
        if not self._left:
            self._left = True
            self._leave()

    def _wait_for_head(self) -> None:
        if self._due is None:
            self._due = self.loop.call_later(self._head, self._cut_off)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _cut_off(self) -> None:
        _log.warning("A connection from %s sent no request in time.", address_of(self.client))
        self.transport.abort()
