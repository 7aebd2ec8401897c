"""Vectors over Z_m for a modulus m of b bits: their machine type, and their b bits per coordinate on the wire.

The modulus is 2^b, or less (the largest prime of b bits). Modulo 2^b arithmetic runs in the smallest unsigned machine
type that holds b bits, where wraparound is free: a sum modulo 2^32 is also right modulo 2^20. Modulo anything else a
sum must not wrap around before it is reduced, so it is added up in 64 bits. Coordinate i takes the bits from i*b to
(i+1)*b of the packed bytes, least significant first, and the last byte is padded with zeros.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import Malformed

Ring = NDArray[np.unsignedinteger[Any]]
"""A vector of ring elements, in the type that `ring_dtype` gives."""

SMALLEST_RING = 16
LARGEST_RING = 64


_SHORT = 16384  # numbers; packing them one by one is faster than 64 at a time
_IN_A_WORD = 57  # bits that are in the eight bytes from the one where they begin


def ring_dtype(bits: int) -> np.dtype[Any]:
    """Return the little-endian unsigned type in which the ring of `bits` bits is computed."""
    if not SMALLEST_RING <= bits <= LARGEST_RING:
        raise ValueError(f"A ring has {SMALLEST_RING} to {LARGEST_RING} bits, not {bits}.")
    return np.dtype("<u2" if bits == 16 else "<u4" if bits <= 32 else "<u8")


def reduce(vector: Ring, modulus: int) -> Ring:
    """Take the vector modulo the modulus, in place, and return it."""
    if modulus.bit_count() > 1:
        np.remainder(vector, vector.dtype.type(modulus), out=vector)
    elif modulus < 1 << 8 * vector.dtype.itemsize:
        np.bitwise_and(vector, vector.dtype.type(modulus - 1), out=vector)
    return vector


def residues(integers: NDArray[np.int64], modulus: int) -> NDArray[np.uint64]:
    """Return signed integers modulo the modulus."""
    if modulus.bit_count() > 1:
        return np.mod(integers, np.int64(modulus)).view(np.uint64)
    return integers.view(np.uint64) & np.uint64(modulus - 1)


def centred(vector: Ring, modulus: int) -> NDArray[np.int64]:
    """Return the representatives that are closest to 0, as signed integers: the inverse of `residues`. Of two, it is
    the negative one."""
    numbers = reduce(vector.astype(np.uint64), modulus)
    negative = numbers > np.uint64((modulus - 1) // 2)
    # In two's complement; 2^64 itself needs no step.
    return (numbers - negative * np.uint64(modulus % 2**64)).view(np.int64)


def packed_size(dim: int, bits: int) -> int:
    """Return the number of bytes of a packed vector."""
    return (dim * bits + 7) // 8


def pack(vector: Ring, bits: int) -> bytes:
    """Return the bytes of a reduced vector."""
    dtype = ring_dtype(bits)
    if bits == 8 * dtype.itemsize:
        return vector.astype(dtype, copy=False).tobytes()
    if len(vector) <= _SHORT:
        octets = vector.astype("<u8").view(np.uint8).reshape(-1, 8)
        flags = np.unpackbits(octets, axis=1, count=bits, bitorder="little")
        return np.packbits(flags, bitorder="little").tobytes()
    # 64 coordinates of b bits are exactly b words: column i of a row of 64 lands at bit i*b.
    rows = -(-len(vector) // 64)
    table = np.zeros(rows * 64, dtype=np.uint64)
    table[: len(vector)] = vector
    columns = np.ascontiguousarray(table.reshape(rows, 64).T)
    words = np.zeros((bits, rows), dtype=np.uint64)
    for i in range(64):
        word, shift = divmod(i * bits, 64)
        words[word] |= columns[i] << np.uint64(shift)
        if shift + bits > 64:
            words[word + 1] |= columns[i] >> np.uint64(64 - shift)
    return words.T.astype("<u8").tobytes()[: packed_size(len(vector), bits)]


def unpack(data: bytes | memoryview, dim: int, bits: int) -> Ring:
    """Return the reduced vector of exactly `dim` coordinates in the bytes."""
    dtype = ring_dtype(bits)
    if len(data) != packed_size(dim, bits):
        raise Malformed(
            f"A vector of {len(data)} bytes came where {packed_size(dim, bits)} belong."
        )
    if bits == 8 * dtype.itemsize:
        return np.frombuffer(data, dtype=dtype).copy()
    spare = 8 * len(data) - dim * bits
    if spare and data[-1] >> (8 - spare):
        raise Malformed("The padding bits of a vector are not zero.")
    if dim <= _SHORT and bits <= _IN_A_WORD:
        starts, shifts = _places(dim, bits)
        return (_words(data)[starts] >> shifts & np.uint64((1 << bits) - 1)).astype(dtype)
    rows = -(-dim // 64)
    raw = np.zeros(rows * bits * 8, dtype=np.uint8)
    raw[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    words = np.ascontiguousarray(raw.view("<u8").astype(np.uint64).reshape(rows, bits).T)
    columns = np.empty((64, rows), dtype=np.uint64)
    for i in range(64):
        word, shift = divmod(i * bits, 64)
        columns[i] = words[word] >> np.uint64(shift)
        if shift + bits > 64:
            columns[i] |= words[word + 1] << np.uint64(64 - shift)
    columns &= np.uint64((1 << bits) - 1)
    return columns.T.reshape(-1)[:dim].astype(dtype)


@lru_cache(maxsize=32)
def _places(dim: int, bits: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the byte in which each number begins, and its first bit there."""
    places = bits * np.arange(dim)
    return places >> 3, (places & 7).astype(np.uint64)


def _words(data: bytes | memoryview) -> NDArray[np.uint64]:
    """Return the eight bytes that begin at each byte, as one number, with zeros behind the end."""
    padded = bytes(data) + bytes(8)
    return np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))
