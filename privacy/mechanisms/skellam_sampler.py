"""Exact Skellam noise: the difference of two Poissons with the same mean, of integer variance mu, from a cryptographic stream.

P(x) = e^-mu I_x(mu). The Bessel functions come from the backward recurrence I_{x-1} = I_{x+1} + (2x/mu) I_x (Miller) in
integers with 192 guard bits, are folded to |x|, scaled to sum exactly to a power of two, and put into an alias table. A draw takes
one 64-bit word: index, sign and fraction; a fraction equal to the threshold's leading bits is refined by 64 more. The law drawn
differs from Skellam's by less than 2^-100 in total variation per draw (the tail below 2^-128 is cut, and weights are rounded).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.mechanisms.randomness import Stream

_GUARD_BITS = 192
_TAIL_BITS = 128
_BLOCK = 1 << 15


@dataclass(frozen=True)
class _AliasTable:
    """2^index_bits cells: `high` and `low` are the leading and the next 64 bits of a cell's threshold, `other` its alias."""

    index_bits: int
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    other: NDArray[np.int32]


def _largest_value(mu: int) -> int:
    """The least t whose Chernoff bound, P(|X| > t) <= 2 exp(sqrt(t^2 + mu^2) - mu - t asinh(t/mu)), is below 2^-128."""
    wanted = -(_TAIL_BITS + 1) * math.log(2.0)

    def log_tail(t: float) -> float:
        # sqrt(t^2 + mu^2) - mu without cancellation.
        return t * t / (math.hypot(t, mu) + mu) - t * math.asinh(t / mu)

    low, high = 0, 16
    while log_tail(high) > wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if log_tail(middle) > wanted else (low, middle)
    return high


def _folded_bessel(mu: int) -> list[int]:
    """Integers proportional to P(0), 2 P(1), 2 P(2), ..."""
    top = _largest_value(mu)
    # Started beyond the top: the recurrence forgets its wrong start on the way down.
    start = top + 64
    above, here = 0, 1 << _GUARD_BITS
    values = [0] * (top + 1)
    for x in range(start, 0, -1):
        above, here = here, above + 2 * x * here // mu
        if x <= top + 1:
            values[x - 1] = here
    return [values[0]] + [2 * value for value in values[1:]]


@lru_cache(maxsize=4)
def _alias_table(mu: int) -> _AliasTable:
    values = _folded_bessel(mu)
    index_bits = max(1, (len(values) - 1).bit_length())
    cells = 1 << index_bits
    one = 1 << (63 - index_bits + 64)  # a full cell, in units of the last threshold bit
    total = sum(values)
    weights = [value * one * cells // total for value in values]
    weights[0] += one * cells - sum(weights)  # what rounding down lost: below 2^-100 of the mass
    weights += [0] * (cells - len(weights))

    threshold, other = weights, list(range(cells))
    full = iter([x for x in range(cells) if weights[x] > one])
    giver = next(full, -1)
    left = weights[giver]
    # Sweep: every cell that is not full is topped up by the current giver; a giver that falls below full is topped up by the next.
    for x in [x for x in range(cells) if weights[x] <= one]:
        if weights[x] == one:
            continue
        other[x] = giver
        left -= one - weights[x]
        while left < one:
            threshold[giver] = left
            following = next(full)
            other[giver] = following
            left = weights[following] - (one - left)
            giver = following
    if giver >= 0:
        threshold[giver] = one
    mask = (1 << 64) - 1
    return _AliasTable(
        index_bits=index_bits,
        high=np.array([t >> 64 for t in threshold], dtype=np.uint64),
        low=np.array([t & mask for t in threshold], dtype=np.uint64),
        other=np.array(other, dtype=np.int32),
    )


def sample_skellam(mu: int, size: int, stream: Stream) -> NDArray[np.int64]:
    """`size` independent draws of variance `mu` (an integer; 0 gives zeros)."""
    if mu < 0 or mu != int(mu):
        raise ValueError(f"the variance of Skellam noise is a whole number here, not {mu}.")
    out = np.zeros(size, dtype=np.int64)
    if mu == 0:
        return out
    table = _alias_table(int(mu))
    bits = np.uint64(table.index_bits)
    mask = np.uint64((1 << table.index_bits) - 1)
    for start in range(0, size, _BLOCK):
        words = stream.uint64(min(_BLOCK, size - start))
        cell = (words & mask).astype(np.int64)
        words >>= bits
        negative = (words & np.uint64(1)).astype(np.bool_)
        words >>= np.uint64(1)
        high = table.high[cell]
        keep = words < high
        tied = np.flatnonzero(words == high)
        if tied.size:
            keep[tied] = stream.uint64(tied.size) < table.low[cell[tied]]
        value = np.where(keep, cell, table.other[cell])
        out[start : start + len(value)] = np.where(negative, -value, value)
    return out
