"""The numbers that two devices share without sending them: a pseudo-random function of their secret, read as
elements of the field.

The input is of fixed length: the secret, what it is for, a hash of the round's context and of what was broadcast, and
who deals to whom. Without the direction the masked vectors and the published numbers alone would give a combination of
vectors (docs/explanation/two_trips_proof.md).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from .field import Field, prime_below

_SHARE = b"secagg/2 share  "


def moment_of(context: bytes, broadcast: bytes) -> bytes:
    """Return the hash of a round and of what was broadcast in it."""
    return hashlib.sha256(b"secagg/2 moment" + context + broadcast).digest()


def share_input(key: bytes, moment: bytes, dealer: int, holder: int) -> bytes:
    """Return what the numbers follow from that `dealer` deals to `holder`."""
    return key + _SHARE + moment + struct.pack("<QQ", dealer, holder)


def numbers(inputs: Sequence[bytes], count: int, bits: int) -> Field:
    """Return a row of `count` numbers for each input, uniform below the largest prime of so many bits."""
    width = 2 if bits == 16 else 4
    raw = b"".join([hashlib.shake_256(one).digest(width * count) for one in inputs])
    drawn = _masked(raw, width, bits).reshape(len(inputs), count)
    prime = prime_below(bits)
    for row in np.flatnonzero((drawn >= prime).any(axis=1)):
        drawn[row] = _accepted(inputs[int(row)], count, width, bits, prime)
    return drawn


def _accepted(one: bytes, count: int, width: int, bits: int, prime: int) -> Field:
    """Return the first `count` numbers of a stream that are below the prime. The others are passed over."""
    length = 2 * count
    while True:
        drawn = _masked(hashlib.shake_256(one).digest(width * length), width, bits)
        accepted = drawn[drawn < prime]
        if len(accepted) >= count:
            return accepted[:count]
        length *= 2


def _masked(raw: bytes, width: int, bits: int) -> Field:
    return (np.frombuffer(raw, dtype=f"<u{width}") & ((1 << bits) - 1)).astype(np.uint64)
