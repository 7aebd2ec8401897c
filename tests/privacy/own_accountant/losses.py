"""Privacy losses on a grid, and their composition.

Let P and Q be the laws of what an adversary sees in two worlds. The loss of an output x is log(P(x)/Q(x)), and the two
worlds are (epsilon, delta)-indistinguishable in this direction if and only if

    E_P[(1 - exp(epsilon - loss))_+] <= delta.

A `Loss` is the law of the loss under P with every loss rounded DOWN to a multiple of `step`; the true one is higher by
at most `slack`. The expectation grows with the loss. So what is rounded down gives a lower bound of epsilon, and the
same plus the slack an upper bound. Losses of independent outputs add up, and so do their slacks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft

Floats = NDArray[np.float64]

_CUT = 36.0  # e^-36 = 2.3e-16: what may lie outside of a window, on each side
_FFT_ERROR = 1e-12  # in a sum of masses; observed are some 1e-15
_BLOCK = 64  # losses taken together where a bound needs no more precision


class Interval(NamedTuple):
    """The truth is at least `low` and at most `high`."""

    low: float
    high: float


@dataclass(frozen=True)
class Loss:
    """`masses[i]` is the probability under P of the loss (first + i) * step; `missing` is what is in no mass."""

    step: float
    first: int
    masses: Floats
    slack: float
    missing: float = 0.0

    @property
    def values(self) -> Floats:
        return (self.first + np.arange(len(self.masses))) * self.step

    def epsilon(self, delta: float) -> Interval:
        """The smallest epsilon at this delta, from below and from above."""
        spare = delta - self.missing - _FFT_ERROR
        low = self._rounded_epsilon(delta + _FFT_ERROR)
        high = self._rounded_epsilon(spare) + self.slack if spare > 0.0 else math.inf
        return Interval(low, high)

    def _rounded_epsilon(self, delta: float) -> float:
        """Between two values of the grid delta(epsilon) = a - e^epsilon b, with sums a of masses and b of masses
        e^-loss above epsilon."""
        values = self.values
        seen = values >= 0.0  # an epsilon is not negative, and losses below it do not count
        values, masses = values[seen], np.maximum(self.masses[seen], 0.0)
        above = np.cumsum(masses[::-1])[::-1]
        other = np.cumsum((masses * np.exp(-values))[::-1])[::-1]
        enough = np.flatnonzero(above - np.exp(values) * other > delta)
        if not len(enough):
            return 0.0
        # The solution lies below this value, which is not the last: there delta(epsilon) is zero.
        i = enough[-1] + 1
        return math.log((above[i] - delta) / other[i])


def rounded_down(
    losses: Floats, masses: Floats, step: float, *, slack: float = 0.0, missing: float = 0.0
) -> Loss:
    """The law of `losses` with these `masses`; each of them is known to be at most `slack` too low."""
    # A value that numerics put a hair above a multiple of the step is rounded down to the one before.
    places = np.floor(losses / step - 1e-6).astype(np.int64)
    first = int(places.min())
    return Loss(step, first, np.bincount(places - first, masses), slack + 1.001 * step, missing)


def composed(parts: Sequence[tuple[Loss, int]]) -> Loss:
    """The loss of so many independent outputs of each kind: a product of Fourier transforms, in a window that the sum
    hardly leaves."""
    step = parts[0][0].step
    assert all(loss.step == step for loss, _ in parts)
    low = _edge(parts, -1.0)
    high = _edge(parts, 1.0)
    length = max(high - low + 1, *(len(loss.masses) for loss, _ in parts))
    size = fft.next_fast_len(length, real=True)
    product = np.ones(size // 2 + 1, dtype=complex)
    for loss, count in parts:
        product *= fft.rfft(loss.masses, size) ** count
    start = sum(count * loss.first for loss, count in parts)
    # Entry j of the circle stands for all sums that are start + j modulo its size.
    masses = np.roll(fft.irfft(product, size), -((low - start) % size))
    return Loss(
        step,
        low,
        masses,
        sum(count * loss.slack for loss, count in parts),
        sum(count * loss.missing for loss, count in parts) + 2.0 * math.exp(-_CUT),
    )


def _edge(parts: Sequence[tuple[Loss, int]], sign: float) -> int:
    """Where Chernoff's bound says that the sum lies beyond with probability e^-36: P(S > t) <= E[e^(a S)] e^(-a t) for
    every a > 0."""
    blocks = [(*_coarse(loss, sign), count) for loss, count in parts]
    largest = max(float(np.abs(values).max()) for values, _, _ in blocks)
    edge = math.inf
    for a in np.geomspace(1e-1, 1e3, 17) / largest:
        log_moment = sum(count * _log_moment(a * values, m) for values, m, count in blocks)
        edge = min(edge, (log_moment + _CUT) / float(a))
    return int(sign) * math.ceil(edge / parts[0][0].step)


def _log_moment(exponents: Floats, masses: Floats) -> float:
    peak = float(exponents.max())
    return peak + math.log(masses @ np.exp(exponents - peak))


def _coarse(loss: Loss, sign: float) -> tuple[Floats, Floats]:
    """The masses in blocks, each at the end of its block that lies farther in the direction of `sign`; values are times
    `sign`."""
    padded = np.pad(np.maximum(loss.masses, 0.0), (0, -len(loss.masses) % _BLOCK))
    masses = padded.reshape(-1, _BLOCK).sum(axis=1)
    starts = loss.first + _BLOCK * np.arange(len(masses))
    ends = starts + _BLOCK - 1 if sign > 0 else starts
    kept = masses > 0.0
    return sign * ends[kept] * loss.step, masses[kept]
