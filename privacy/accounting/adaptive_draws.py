"""Composition of cohorts of a fixed size with Gaussian noise, tighter than by one dominating pair.

The pair of `dominating_pairs` joins two worst cases: the other unit's vector y is opposite to the unit's x for g > 1,
and equal to it for g < 1. In one release it cannot be both. Here the adversary has to choose in every release, and may
choose by the loss so far. Notation as there: z is the noise, zero-out adjacency, everything in units of the clip.

**One release.** Let t = x.y, which lies between -1 and 1. The entries of the covariance (times z^2) in H_g(P || Q) are
|x|^2, |y - x|^2 and |x|^2 - t, which are at most 1, 2 - 2t and 1 - t. Those in H_g(Q || P) are |x|^2, |y|^2 and t, at
most 1, 1 and t. Both bounds are covariances, and unit vectors with x.y = t reach them. So by Kahane's inequality, for g
>= 1,

    H_g(P || Q) <= F(t, g),   which falls with t,      and      H_g(Q || P) <= B(t, g),   which grows with t.

For t in an interval [t_i, t_{i+1}] the profile that has F(t_i, g) for g >= 1 and comes from B(t_{i+1}, .) for g < 1
bounds both. It is a supremum of profiles of pairs, and so that of a pair D_i.

**Several releases.** Let V_k(g) bound the largest H_g(P || Q) of k releases, whatever their data, chosen by what was
seen. V_0(g) = [1 - g]_+. Given the first output o, the rest has at most V_{k-1}(g Q(o) / P(o)), so that H_g is at most
the integral of P V_{k-1}(g Q / P). V_{k-1} is convex and falls from 1 to 0, so this integral is a mixture of
hockey-stick divergences, jointly convex in (P, Q), and no larger for the first release than for one of the D_i:

    V_k(g) = max_i E[V_{k-1}(g e^-L)],      L the privacy loss of D_i, with V_{k-1}(0) = 1 where it is infinite,

is such a bound, and is convex and falls from 1 to 0 again. (The draws of a release are mixtures over t, which joint
convexity covers. Devices must have no memory, so that the laws of y are the same in both worlds.) H_g(Q || P) follows:
it is 1 - g + g H_{1/g}(P || Q).

**Other releases** of the run have one dominating pair each, so they are expectations E[V(g e^-L)] without a choice. A
choice that comes later, knowing their loss, is worth no less: max_i E E_i V <= E max_i E_i V. So in whatever order they
were made, it is a bound to take them as the first releases.

**Numbers.** "Connect the dots" replaces each D_i by a pair that dominates it, whose losses lie on a grid. V is computed
on the same grid, so nothing is interpolated until the end, where a chord of a convex function is above it. Left of the
grid V is taken as the chord from V(0) = 1 to its first value, right of it as its last value.

Not for Skellam noise: it is dominated by Gaussian noise with y mirrored in some coordinates, and with other mirrors in
the two directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from fedsketch.privacy.accounting import pld
from fedsketch.privacy.accounting.dominating_pairs import GaussianZeroOutPair, Pair, PoissonPair
from fedsketch.privacy.accounting.renyi import Curve

PairProfile = Callable[[Curve, GaussianZeroOutPair, float], Curve]

LARGEST_EPSILON = 8.0
_INTERVALS = 8
_STEPS_PER_SPREAD = 20.0
_FEWEST_STEPS = 2.5  # for long runs: this adds about 1 % to epsilon
_LOWEST, _HIGHEST = -10.0, 12.0  # log g at the ends of the grid
_MOST_WORK = 4e7  # points times intervals times releases: about a second
_KEPT = 16  # every so many V are kept, for shorter runs
_ROUNDING = 1e-14  # more than Fourier transforms of such lengths lose
_NODES = np.linspace(-9.0, 9.0, 601)


def put(g: Curve, rate: float, noise: float, variance: float, covariance: float) -> Curve:
    """Return E[(q - q g X1 - (1 - q)(g - 1) X2)_+], where X1 and X2 are log-normal with mean 1, and the logarithms have
    the variances 1 and `variance` and this covariance, all divided by noise^2.

    Given X1 it is the Black-Scholes formula of a put; the integral over X1 is by the trapezoidal rule."""
    from scipy.special import ndtr

    slope = covariance / noise  # of log X2 in the standard normal variable of X1
    rest = (variance - covariance**2) / noise**2
    deviation = math.sqrt(rest)
    first = np.exp(_NODES / noise - 0.5 / noise**2)
    second = np.exp(slope * _NODES - 0.5 * slope**2)  # E[X2 | X1]
    strike = rate * (1.0 - g[:, None] * first)
    stock = (1.0 - rate) * (g[:, None] - 1.0) * second
    with np.errstate(divide="ignore", invalid="ignore"):
        d = (np.log(np.maximum(strike, 0.0)) - np.log(stock)) / deviation + deviation / 2.0
        value = np.where(strike > 0.0, strike * ndtr(d) - stock * ndtr(d - deviation), 0.0)
    weights = np.exp(-(_NODES**2) / 2.0) * (_NODES[1] - _NODES[0]) / math.sqrt(2.0 * math.pi)
    return np.maximum(np.maximum(value, 0.0) @ weights, 0.0)


def ahead(g: Curve, pair: GaussianZeroOutPair, t: float) -> Curve:
    """Return F(t, g)."""
    if t <= -1.0:
        return pair.with_unit(g)
    return put(g, pair.rate, pair.noise, 2.0 - 2.0 * t, 1.0 - t)


def back(g: Curve, pair: GaussianZeroOutPair, t: float) -> Curve:
    """Return B(t, g)."""
    if t >= 1.0:
        return PoissonPair(pair.noise, pair.rate).with_unit(g)
    return put(g, pair.rate, pair.noise, 1.0, t)


def _at(profile: PairProfile, pair: GaussianZeroOutPair, t: float, g: Curve) -> Curve:
    return profile(g, pair, t)


class _Composition:
    """V_k of one pair, for k = 0, 1, 2, ..."""

    def __init__(self, pair: GaussianZeroOutPair, step: float) -> None:
        self._step = step
        self._grid: Curve = (
            np.arange(round(_LOWEST / step), round(_HIGHEST / step) + 1, dtype=np.float64) * step
        )
        ends = -np.cos(np.linspace(0.0, math.pi, _INTERVALS + 1))
        losses = []
        for low, high in pairwise(ends):
            one = pld.distribution(
                partial(_at, ahead, pair, low), partial(_at, back, pair, high), pair.noise, step
            ).to_dense_pmf()
            losses.append((one._lower_loss, one._probs, one._infinity_mass))
        self._low = min(first for first, _, _ in losses)
        self._high = max(first + len(mass) - 1 for first, mass, _ in losses)
        width = self._high - self._low + 1
        self._size = 1 << (len(self._grid) + 2 * width).bit_length()
        self._choices = []
        for first, mass, infinite in losses:
            padded = np.zeros(width)
            padded[first - self._low : first - self._low + len(mass)] = mass
            self._choices.append((np.fft.rfft(padded, self._size), infinite))
        self._least = np.maximum(-np.expm1(self._grid), 0.0)
        self._kept: dict[int, Curve] = {0: self._least}
        self._latest = (0, self._least)

    def after(self, count: int) -> tuple[Curve, Curve]:
        """Return log g, and V of this many releases."""
        known = {**self._kept, self._latest[0]: self._latest[1]}
        done = max(k for k in known if k <= count)
        value = known[done]
        while done < count:
            value, done = self._one_more(value), done + 1
            if done % _KEPT == 0:
                self._kept[done] = value
        self._latest = (count, value)
        return self._grid, value

    def _one_more(self, value: Curve) -> Curve:
        before = max(self._high, 0)
        whole = _longer(value, before, max(-self._low, 0), self._step)
        there, start = np.fft.rfft(whole, self._size), before - self._low
        options = [
            np.fft.irfft(there * mass, self._size)[start : start + len(value)] + infinite
            for mass, infinite in self._choices
        ]
        return np.clip(np.max(options, axis=0) + _ROUNDING, self._least, 1.0)


def _longer(value: Curve, before: int, beyond: int, step: float) -> Curve:
    """Return V with so many more points of the grid on its two sides."""
    chord = 1.0 - np.exp(np.arange(-before, 0) * step) * (1.0 - value[0])
    return np.concatenate([chord, value, np.full(beyond, value[-1])])


def _first(loss: Any, value: Curve, step: float) -> Curve:
    """Return E[V(g e^-L)] for a composed loss distribution of dp-accounting."""
    pmf = loss._pmf_remove.to_dense_pmf()
    low, high = pmf._lower_loss, pmf._lower_loss + len(pmf._probs) - 1
    before = max(high, 0)
    whole = _longer(value, before, max(-low, 0), step)
    size = 1 << (len(whole) + len(pmf._probs)).bit_length()
    product = np.fft.rfft(whole, size) * np.fft.rfft(pmf._probs, size)
    start = before - low
    result = np.fft.irfft(product, size)[start : start + len(value)] + pmf._infinity_mass
    return np.minimum(result + _ROUNDING, 1.0)


def _step(pair: GaussianZeroOutPair, count: int) -> float:
    """Return the step of the grid: a power of two, so that runs of different length share their distributions. It is
    longer where so many releases would take too long otherwise."""
    usual = math.sqrt(pld.squared_spread(pair)) / _STEPS_PER_SPREAD
    quick = count * _INTERVALS * (_HIGHEST - _LOWEST) / _MOST_WORK
    return float(2.0 ** max(math.floor(math.log2(usual)), math.ceil(math.log2(quick))))


@lru_cache(maxsize=8)
def _composition(pair: GaussianZeroOutPair, step: float) -> _Composition:
    return _Composition(pair, step)


def is_quick(pair: GaussianZeroOutPair, count: int) -> bool:
    """Return whether this many releases can be composed in about a second."""
    return _step(pair, count) * _FEWEST_STEPS <= math.sqrt(pld.squared_spread(pair))


def epsilon(
    pair: GaussianZeroOutPair, count: int, delta: float, others: Mapping[Pair, int]
) -> float:
    """Return epsilon of this many releases, and of the others beside them; infinity if it is above the grid."""
    step = _step(pair, count)
    grid, value = _composition(pair, step).after(count)
    if others:
        value = _first(pld.composed(list(others.items()), step), value, step)
    zero = int(np.searchsorted(grid, 0.0))
    g = np.exp(grid[zero:])
    mirrored = value[zero::-1][: len(g)]  # V(1/g), as far as the grid goes
    worst = value[zero:].copy()
    reach = len(mirrored)
    worst[:reach] = np.maximum(worst[:reach], 1.0 - g[:reach] + g[:reach] * mirrored)
    fits = np.flatnonzero(worst[:reach] <= delta)
    if not fits.size:
        return math.inf
    right = int(fits[0])
    if right == 0:
        return 0.0
    weight = (worst[right - 1] - delta) / (worst[right - 1] - worst[right])
    return math.log(g[right - 1] + weight * (g[right] - g[right - 1]))
