"""Who is here: what each address holds of the gate's connections, memory, and turns at the SuperLink."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedsketch.server.gate.limits import Limits


class OutOfMemory(Exception):
    """The bodies of this address, or of all, need more memory than they may have."""


def address_of(peer: object) -> str:
    """Return what is counted as one address, from a socket's peer. What a request's headers say does not matter."""
    host = str(peer[0]) if isinstance(peer, tuple | list) and peer else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


@dataclass
class Guest:
    """What one address holds."""

    turns: asyncio.Semaphore
    connections: int = 0
    requests: int = 0
    memory: int = 0


class Body:
    """The bytes of one request, which count as its guest's until they are given back."""

    def __init__(self, guests: Guests, guest: Guest) -> None:
        self._guests, self._guest = guests, guest
        # One array, because many small pieces would take a multiple of their size.
        self.content = bytearray()

    def add(self, piece: bytes) -> None:
        limits, size = self._guests.limits, len(piece)
        if self._guests.memory + size > limits.memory:
            raise OutOfMemory
        if self._guest.memory + size > limits.memory_per_address:
            raise OutOfMemory
        self._guests.memory += size
        self._guest.memory += size
        self.content += piece

    def give_back(self) -> None:
        self._guests.memory -= len(self.content)
        self._guest.memory -= len(self.content)
        self.content = bytearray()


@dataclass
class Guests:
    """All addresses that have a connection or a request."""

    limits: Limits
    connections: int = 0
    memory: int = 0
    known: dict[str, Guest] = field(default_factory=dict)

    def connect(self, address: str) -> bool:
        """Count a new connection of an address; returns whether it may stay."""
        if self.connections >= self.limits.connections:
            return False
        guest = self._at(address)
        if guest.connections >= self.limits.connections_per_address:
            return False
        guest.connections += 1
        self.connections += 1
        return True

    def disconnect(self, address: str) -> None:
        """Count a connection no more."""
        self.known[address].connections -= 1
        self.connections -= 1
        self._forget(address)

    @contextmanager
    def request(self, address: str) -> Iterator[tuple[Guest, Body]]:
        """Count a request of an address; its body is given back at the end."""
        guest = self._at(address)
        guest.requests += 1
        body = Body(self, guest)
        try:
            yield guest, body
        finally:
            body.give_back()
            guest.requests -= 1
            self._forget(address)

    def _at(self, address: str) -> Guest:
        if address not in self.known:
            self.known[address] = Guest(asyncio.Semaphore(self.limits.upstream_per_address))
        return self.known[address]

    def _forget(self, address: str) -> None:
        guest = self.known[address]
        if not guest.connections and not guest.requests:
            del self.known[address]
