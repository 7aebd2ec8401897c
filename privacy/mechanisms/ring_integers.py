"""Integers modulo m, which is 2^b or a smaller odd number of b bits, as secure aggregation sums them.

They are held in unsigned words of 64 bits. Modulo 2^b a sum may wrap around in its words. Any other modulus is below
2^32, so that 2^32 uploads add up in a word without wrapping around.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_ODD_RING = 32  # bits


def modulus_of(bits: int, odd: int) -> int:
    """Return the modulus of a ring of this size: `odd`, or 2^bits if that is 0."""
    return odd or 1 << bits


def is_modulus(bits: int, odd: int) -> bool:
    """Return whether `odd` is 0, or an odd number of so many bits that sums are exact."""
    return not odd or (odd % 2 == 1 and odd.bit_length() == bits <= LARGEST_ODD_RING)


def into_ring(integers: NDArray[np.int64], modulus: int) -> NDArray[np.uint64]:
    """Encode signed integers as ring integers: from 0 to the modulus less 1."""
    if modulus % 2:
        return np.mod(integers, np.int64(modulus)).view(np.uint64)
    return integers.astype(np.uint64) & np.uint64(modulus - 1)


def ring_sum(vectors: Sequence[NDArray[Any]], modulus: int) -> NDArray[np.float64]:
    """Return the sum in the ring, decoded to signed integers: from -m/2 to m/2 - 1 if the modulus m is even, else up to
    (m - 1)/2 on both sides."""
    total = reduced(unreduced_sum(vectors), modulus)
    negative = total > np.uint64((modulus - 1) // 2)
    # In two's complement; 2^64 itself needs no step.
    return (total - negative * np.uint64(modulus % 2**64)).view(np.int64).astype(np.float64)


def unreduced_sum(vectors: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Return the sum of ring integers, to which others may still be added."""
    total = np.zeros(vectors[0].shape, dtype=np.uint64)
    for vector in vectors:
        total += vector
    return total


def reduced(total: NDArray[np.uint64], modulus: int) -> NDArray[np.uint64]:
    """Return ring integers for a sum of them."""
    return total % np.uint64(modulus) if modulus % 2 else total & np.uint64(modulus - 1)


def ring_text(bits: int, odd: int, scale: float) -> str:
    """Return what a plan says about a ring."""
    size = f"{bits} bits, modulo {odd:,}" if odd else f"{bits} bits"
    return f"{size}, scale {scale:.6g}"
