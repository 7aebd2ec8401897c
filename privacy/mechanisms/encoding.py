"""The steps from a real vector to a bounded integer vector: clip, rotate, round. `skellam_ring` combines them.

Floating-point errors affect only accuracy. The bound that privacy depends on is checked in exact integer arithmetic,
by `round_conditionally`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsketch.errors import UnsafeUpdateError
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.ring_integers import unreduced_sum

# Each draw is accepted with probability at least 1 - exp(-1/2), so this limit is never reached in practice.
_MOST_DRAWS = 1000
_COLUMNS_AT_ONCE = 2**18
_PART = 2**22 - 1  # the lowest 22 bits


def clip_rows(rows: NDArray[np.floating], max_norm: float) -> NDArray[np.float64]:
    """Multiply every row by min(1, C / its norm), in float64. Raises for nan and inf."""
    values = np.asarray(rows, dtype=np.float64)
    largest = np.max(np.abs(values), axis=1, initial=0.0, keepdims=True)
    if not np.isfinite(largest).all():
        raise UnsafeUpdateError(
            "the update contains nan or inf; nothing was released: lower the learning rate or check the data."
        )
    # Work in units of the row's largest entry, so that no square overflows and no factor underflows.
    unit = np.where(largest > 0.0, largest, 1.0)
    scaled = values / unit
    lengths = np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1.0)
    with np.errstate(over="ignore"):
        fits = lengths <= max_norm / unit
    return np.where(fits | (largest == 0.0), values, scaled * (max_norm / lengths))


def _signs(dim: int, seed: int) -> NDArray[np.float64]:
    """Return the public random signs of the rotation: the same on every device and on the server."""
    with Stream(derived_key(seed, "rotation", dim)) as stream:
        bits = np.unpackbits(np.frombuffer(stream.bytes(-(-dim // 8)), dtype=np.uint8))[:dim]
    return 1.0 - 2.0 * bits.astype(np.float64)


def rotated(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    from scipy import fft  # importing it takes 0.3 s, and only small rings rotate

    turned: NDArray[np.float64] = fft.dct(values * _signs(values.shape[-1], seed), norm="ortho")
    return turned


def unrotated(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    from scipy import fft

    back: NDArray[np.float64] = fft.idct(values, norm="ortho") * _signs(values.size, seed)
    return back


def squared_norms(integers: NDArray[np.int64]) -> NDArray[np.object_]:
    """Return the exact squared L2 norm |q|^2 of every row, as Python integers. The time depends on the shape only.

    Each number is written as a + 2^22 b + 2^44 c. A product of two such parts has at most 44 bits, so 2^18 of them add
    up in 64 bits.
    """
    total = np.zeros(len(integers), dtype=object)
    for start in range(0, integers.shape[1], _COLUMNS_AT_ONCE):
        block = integers[:, start : start + _COLUMNS_AT_ONCE]
        parts = (block & _PART, (block >> 22) & _PART, block >> 44)
        for i, left in enumerate(parts):
            for j, right in enumerate(parts[: i + 1]):
                product = np.einsum("ij,ij->i", left, right).astype(object)
                total += product * ((1 if i == j else 2) << 22 * (i + j))
    return total


def exceeds(integers: NDArray[np.int64], bound_squared: int) -> NDArray[np.bool_]:
    """Return for every row whether |q|^2 > `bound_squared`, exactly. The time depends on the shape and the bound, which
    are public, and not on the numbers: the server could measure it."""
    if integers.shape[1] * bound_squared >= 2**63:
        return np.asarray(squared_norms(integers) > bound_squared, dtype=np.bool_)
    largest = math.isqrt(bound_squared)
    outside = (integers.max(axis=1) > largest) | (integers.min(axis=1) < -largest)
    # In the other rows no square is above the bound, so their sum does not overflow.
    return np.asarray(outside | (np.einsum("ij,ij->i", integers, integers) > bound_squared))


def round_conditionally(
    values: NDArray[np.float64], bound_squared: int, stream: Stream
) -> NDArray[np.int64]:
    """Return stochastic rounding to integers q. Each row is drawn again until |q|^2 <= `bound_squared`."""
    floor = np.floor(values)
    fraction = values - floor
    whole = floor.astype(np.int64)
    rounded = whole + (stream.uniform(values.size).reshape(values.shape) < fraction)
    waiting = np.flatnonzero(exceeds(rounded, bound_squared))
    for _ in range(_MOST_DRAWS):
        if not len(waiting):
            return rounded
        draw = stream.uniform(len(waiting) * values.shape[1]).reshape(len(waiting), -1)
        rounded[waiting] = whole[waiting] + (draw < fraction[waiting])
        waiting = waiting[exceeds(rounded[waiting], bound_squared)]
    raise UnsafeUpdateError(
        "rounding did not meet the norm bound; nothing was released: the mechanism does not fit this vector."
    )


def real_sum(vectors: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return the sum in float64, added up in the given order."""
    total = np.zeros(vectors[0].shape)
    for vector in vectors:
        total += vector
    return total


def upload_sum(vectors: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the sum of these uploads, still encoded: ring integers (not yet reduced), or real numbers in float64."""
    return unreduced_sum(vectors) if vectors[0].dtype == np.uint64 else real_sum(vectors)
