"""Public randomness from a seed: the same bits on every machine, in every process, with any number of threads.

Sketches are public, so speed and reproducibility matter here, not secrecy. (Noise that protects someone comes from
`privacy.mechanisms.randomness`.) The 64-bit words come from numpy's SFC64 generator, seeded by its SeedSequence with
(seed, purpose, index). numpy's compatibility policy guarantees that neither changes. Every index has its own stream,
so blocks can be made in any order. From the words on, only integers, table look-ups and exact float operations are
used. numpy's own Gaussians call the C library's log and exp; their last bits, and so the position in the stream,
differ between machines. The Gaussians of torch depend on the vector instructions of the processor.

A Gaussian is the sum of two independent draws, each of variance 1/2, from a table of 65,536 quantiles. The
distribution function of a single draw is within 8e-6 of the normal one. That of the sum is closer by orders of
magnitude, and the sum reaches 6.1 standard deviations (a normal variable exceeds this with two-sided probability
1e-9). It is also faster than numpy's Gaussians.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_LEVELS = 1 << 16
# Table entries are multiples of this and below 2^2, so float32 represents them and their sums exactly.
_UNIT = 2.0**-20
_SCALE = 0.707113951835  # makes the variance of the table 1/2 to 4e-9
_TABLE_SHA256 = "f79c71e52c2e4af31c97819b3134cd30a64494200d1440b83cf44f1ba5faa8e5"
_CHUNK = 1 << 16  # numbers per step; indices and table stay in the second-level cache


class Purpose(IntEnum):
    """What the numbers are for, so that one seed never gives the same numbers to two uses."""

    GAUSSIAN = 1
    SIGNS = 2
    COORDINATES = 3
    BUCKETS = 4
    PROBES = 5
    LAYERS = 6
    DIRECTIONS = 7


class PublicStream:
    """The stream of random numbers for (seed, purpose, index)."""

    def __init__(self, seed: int, purpose: Purpose, *index: int) -> None:
        sequence = np.random.SeedSequence(entropy=seed, spawn_key=(int(purpose), *index))
        self._generator = np.random.Generator(np.random.SFC64(sequence))

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return the next n raw 64-bit words. (`integers` over the whole range gives the same as `random_raw`, and
        does not block other threads.)"""
        return self._generator.integers(0, 2**64 - 1, size=n, dtype=np.uint64, endpoint=True)

    def signs(self, n: int) -> NDArray[np.float32]:
        """Return n independent +1 or -1, one bit each."""
        octets = self.uint64(-(-n // 64)).astype("<u8").view(np.uint8)
        bits = np.unpackbits(octets, count=n, bitorder="little")
        return np.float32(1.0) - np.float32(2.0) * bits.astype(np.float32)

    def below(self, bound: int, n: int) -> NDArray[np.int64]:
        """Return n whole numbers in [0, bound), bound < 2^32. Each has its probability up to an error of 2^-32."""
        halves = self.uint64(-(-n // 2)).astype("<u8").view("<u4")[:n].astype(np.uint64)
        return ((halves * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)

    def subset(self, size: int, n: int) -> NDArray[np.int64]:
        """Return n distinct numbers of [0, size), in ascending order. All subsets are equally likely."""
        if n == size:
            return np.arange(size, dtype=np.int64)
        keys = self.uint64(size)
        return np.sort(np.argpartition(keys, n)[:n]).astype(np.int64)

    def gaussian(self, n: int) -> NDArray[np.float32]:
        """Return n independent standard normal numbers."""
        table = _quantiles()
        out = np.empty(n, dtype=np.float32)
        second = np.empty(min(n, _CHUNK), dtype=np.float32)
        for start in range(0, n, _CHUNK):
            part = out[start : start + _CHUNK]
            count = len(part)
            levels = self.uint64(-(-count // 2)).astype("<u8", copy=False).view("<u2")
            # Indices have 16 bits, so none can be out of range. The mode "wrap" avoids the check.
            np.take(table, levels[:count], mode="wrap", out=part)
            np.take(table, levels[count : 2 * count], mode="wrap", out=second[:count])
            part += second[:count]
        return out


@lru_cache(maxsize=1)
def _quantiles() -> NDArray[np.float32]:
    """Return the normal quantiles at (i + 1/2) / 65,536, scaled to variance 1/2 and rounded to the grid.

    Every entry is at least 1e-11 (relative) away from a point where rounding would change it. So it does not matter if
    the logarithms of two machines differ in the last bit. The hash makes sure.
    """
    half = _LEVELS // 2
    quantile = NormalDist().inv_cdf
    upper = [round(_SCALE * quantile((half + i + 0.5) / _LEVELS) / _UNIT) for i in range(half)]
    integers = np.array([-value for value in reversed(upper)] + upper, dtype="<i4")
    if hashlib.sha256(integers.tobytes()).hexdigest() != _TABLE_SHA256:
        raise RuntimeError(
            "On this machine the table of Gaussian quantiles differs from the one that all clients share: "
            "use a CPython with IEEE doubles, or report the platform."
        )
    return integers.astype(np.float32) * np.float32(_UNIT)
