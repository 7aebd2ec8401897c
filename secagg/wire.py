"""A strict binary codec: every byte has one meaning, every length is bounded by the bytes that
are there.

A message is a kind, the hash of the round that it belongs to, and sets or tables over the cohort.
A set is a bitmap; a table is a set with one item of fixed width per member. Decoding accepts
exactly what encoding makes (canonical), never allocates more than a small multiple of its input,
and raises `Malformed` for anything else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum

import numpy as np

from .errors import Malformed

HASH_BYTES = 32
MAX_MEMBERS = 100_000


class MessageKind(IntEnum):
    """The first byte of a message."""

    ADVERTISE_REQUEST = 1
    ADVERTISE_REPLY = 2
    SHARE_REQUEST = 3
    SHARE_REPLY = 4
    MASK_REQUEST = 5
    MASK_REPLY = 6
    SIGN_REQUEST = 7
    SIGN_REPLY = 8
    UNMASK_REQUEST = 9
    UNMASK_REPLY = 10
    STATE = 11
    HELLO_REQUEST = 12
    HELLO_REPLY = 13
    COHORT = 14
    TERMS = 15
    SHARING_REQUEST = 16
    SHARING_REPLY = 17
    ANSWER_REQUEST = 18
    ANSWER_REPLY = 19
    EPOCHS = 20


class Writer:
    """The parts of a message, one after the other."""

    def __init__(self, kind: MessageKind, digest: bytes = b"") -> None:
        self._parts: list[bytes] = [bytes([kind]), digest]

    def raw(self, data: bytes) -> Writer:
        """Add bytes whose number the reader knows."""
        self._parts.append(data)
        return self

    def u8(self, value: int) -> Writer:
        """Add a number of one byte."""
        return self.raw(struct.pack("<B", value))

    def u32(self, value: int) -> Writer:
        """Add a number of four bytes."""
        return self.raw(struct.pack("<I", value))

    def u64(self, value: int) -> Writer:
        """Add a number of eight bytes."""
        return self.raw(struct.pack("<Q", value))

    def blob(self, data: bytes) -> Writer:
        """Add bytes behind their number."""
        return self.u32(len(data)).raw(data)

    def members(self, n: int, indices: Iterable[int]) -> Writer:
        """Add a set over a cohort of n members."""
        return self.u32(n).raw(bitmap(n, indices))

    def table(self, n: int, items: Mapping[int, bytes]) -> Writer:
        """Add a set over a cohort of n members, with an item of fixed width for each of its members."""
        self.members(n, items)
        return self.raw(b"".join(items[index] for index in sorted(items)))

    def done(self) -> bytes:
        """Return the message."""
        return b"".join(self._parts)


class Reader:
    """A message that is taken apart; every byte too few or too many is noticed."""

    def __init__(self, data: bytes, kind: MessageKind) -> None:
        self._data = memoryview(data)
        self._at = 0
        if self.u8() != kind:
            raise Malformed(f"The message is not of the kind {kind.name}.")

    def raw(self, size: int) -> bytes:
        """Take so many bytes."""
        return bytes(self.view(size))

    def view(self, size: int) -> memoryview:
        """Take so many bytes without copying them."""
        if size > self.left:
            raise Malformed("The message is too short.")
        self._at += size
        return self._data[self._at - size : self._at]

    def u8(self) -> int:
        """Take a number of one byte."""
        return self.view(1)[0]

    def u32(self) -> int:
        """Take a number of four bytes."""
        return int(struct.unpack("<I", self.view(4))[0])

    def u64(self) -> int:
        """Take a number of eight bytes."""
        return int(struct.unpack("<Q", self.view(8))[0])

    def blob(self) -> bytes:
        """Take bytes behind their number."""
        return self.raw(self.u32())

    def rest(self) -> memoryview:
        """Take all bytes that are left."""
        return self.view(self.left)

    @property
    def left(self) -> int:
        """The number of bytes that are left."""
        return len(self._data) - self._at

    def members(self, n: int) -> tuple[int, ...]:
        """Take a set over a cohort that has exactly n members, ascending."""
        if self.u32() != n:
            raise Malformed("A set is over a cohort of another size.")
        return self.bitmap(n)

    def bitmap(self, n: int) -> tuple[int, ...]:
        """Take a set as n bits, ascending."""
        packed = np.frombuffer(self.view((n + 7) // 8), dtype=np.uint8)
        indices = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
        if len(indices) and indices[-1] >= n:
            raise Malformed("A set holds members outside the cohort.")
        return tuple(indices.tolist())

    def table(self, n: int, width: int) -> dict[int, bytes]:
        """Take a set over a cohort that has exactly n members, with an item of this width for each of its members."""
        indices = self.members(n)
        items = self.raw(width * len(indices))
        return {
            index: items[width * place : width * (place + 1)] for place, index in enumerate(indices)
        }

    def end(self) -> None:
        """Raise `Malformed` if bytes are left."""
        if self.left:
            raise Malformed("The message is too long.")


def bitmap(n: int, indices: Iterable[int]) -> bytes:
    """Return the set as n bits, lowest index first, padded with zeros."""
    flags = np.zeros(n, dtype=np.uint8)
    flags[list(indices)] = 1
    return np.packbits(flags, bitorder="little").tobytes()


def digest_of(data: bytes) -> bytes:
    """Return the hash in a message's head, by which a device finds the round it belongs to."""
    if len(data) < 1 + HASH_BYTES:
        raise Malformed("The message is too short.")
    return bytes(data[1 : 1 + HASH_BYTES])
