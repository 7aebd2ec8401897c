"""Arithmetic modulo the largest prime below 2^bits, on whole arrays of unsigned 64-bit numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.uint64]
"""Numbers below q."""

FEWEST_BITS = 16
MOST_BITS = 32  # products of two numbers fit 64 bits
# 2^bits less the largest prime below, from 16 to 32 bits.
_BELOW = (15, 1, 5, 1, 3, 9, 3, 15, 3, 39, 5, 39, 57, 3, 35, 1, 5)
_LIMB = 16
_ALONE = 1 << 18  # multiplications that OpenBLAS does in one thread
_EXACT = 53  # float64 holds whole numbers of so many bits


def prime_below(bits: int) -> int:
    """Return the largest prime below 2^bits."""
    return (1 << bits) - _BELOW[bits - FEWEST_BITS]


def product(a: Field, b: Field, q: int) -> Field:
    """Return the matrix product a b modulo q, exactly, by products of float64 matrices."""
    inner = a.shape[1].bit_length()
    width = (q - 1).bit_length()
    if 2 * width + inner <= _EXACT:
        return _floats(a, b) % np.uint64(q)
    modulus, limb = np.uint64(q), np.uint64(_LIMB)
    low = np.uint64((1 << _LIMB) - 1)
    a_high, a_low, b_high, b_low = a >> limb, a & low, b >> limb, b & low
    middle = (_floats(a_high, b_low) + _floats(a_low, b_high)) % modulus
    high = _floats(a_high, b_high) % modulus
    shifted = ((high << limb) % modulus + middle) % modulus
    return ((shifted << limb) + _floats(a_low, b_low)) % modulus


def _floats(a: Field, b: Field) -> Field:
    """Return the product of matrices whose sums stay below 2^53, in whatever order they are added up. A few columns at
    a time, which libraries do in one thread: to wait for others costs more than these products."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    exact: NDArray[Any] = np.empty((a.shape[0], b.shape[1]))
    step = max(1, _ALONE // a.size)
    for start in range(0, b.shape[1], step):
        np.matmul(left, right[:, start : start + step], out=exact[:, start : start + step])
    return exact.astype(np.uint64)


def inverses(count: int, q: int) -> Field:
    """Return the inverses of 1 to count - 1 modulo q; the first entry is 0."""
    numbers = np.arange(count, dtype=np.uint64)
    return power(numbers, q - 2, q)


def power(base: Field, exponent: int, q: int) -> Field:
    """Return base^exponent modulo q, entry by entry."""
    modulus = np.uint64(q)
    result, factor = np.ones_like(base), base % modulus
    while exponent:
        if exponent & 1:
            result = result * factor % modulus
        factor = factor * factor % modulus
        exponent >>= 1
    return result
