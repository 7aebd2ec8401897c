"""Privacy loss distributions (PLD) of dominating pairs, composed by dp-accounting. That library is imported only when
it is needed, because the import takes 1.3 s.

The privacy loss is discretised. From the divergences of a pair at a grid of epsilons, the "connect the dots" method
(Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022) makes a discrete distribution. Its divergences are nowhere smaller
than those of the pair. Losses above the grid count as infinite. The two directions are composed separately: with the
unit against without it, and the reverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from fedsketch.privacy.accounting.dominating_pairs import Pair
from fedsketch.privacy.accounting.renyi import Curve

_STEPS_PER_SPREAD = 80.0
"""Grid steps per standard deviation of one release's loss. This adds about 1e-5 to epsilon; the error falls with the
square of the number of steps."""
_MOST_STEPS = 2**19
_TAIL = 1e-22
"""The grid ends where the divergence is below this. Larger losses are charged as infinite."""

_MOST_PARTS = 12
"""Composing one part takes some hundredths of a second."""

Profile = Callable[[Curve], Curve]
CountedPair = tuple[Pair, int]
"""A pair, and the number of its releases."""


def _reach(noise: float) -> float:
    """Return a loss above which the divergence of the Gaussian without sampling, and so of every sampled one, is below
    _TAIL."""
    return 10.0 / noise + 0.5 / noise**2


@lru_cache(maxsize=256)
def squared_spread(pair: Pair) -> float:
    """Return approximately the mean square of the privacy loss: for small losses, 4 times the integral of the
    divergence over epsilon."""
    epsilons = np.concatenate([[0.0], _reach(pair.noise) * np.geomspace(1e-8, 1.0, 400)])
    return 4.0 * float(np.trapezoid(pair.with_unit(np.exp(epsilons)), epsilons))


def _interval(parts: Sequence[CountedPair]) -> float:
    """Return the step of the grid. It is a power of two, so that a growing run can mostly reuse cached
    distributions."""
    squared = sum(count * squared_spread(pair) for pair, count in parts)
    step = math.sqrt(squared / sum(count for _, count in parts)) / _STEPS_PER_SPREAD
    step = max(step, max(_reach(pair.noise) for pair, _ in parts) / _MOST_STEPS)
    return float(2.0 ** math.floor(math.log2(step)))


def _largest_loss(profile: Profile, noise: float, interval: float) -> int:
    """Return about where the divergence falls below _TAIL, in grid steps."""
    end = math.ceil(_reach(noise) / interval) + 1
    coarse = np.linspace(0.0, end, 513)
    above = np.flatnonzero(profile(np.exp(coarse * interval)) > _TAIL)
    return math.ceil(coarse[min(int(above[-1]) + 1, 512)]) if above.size else 1


def distribution(ahead: Profile, back: Profile, noise: float, interval: float) -> Any:
    """Return the loss distribution of one direction. For g < 1 its divergence is computed from the other direction."""
    from dp_accounting.pld import pld_pmf

    top, bottom = _largest_loss(ahead, noise, interval), _largest_loss(back, noise, interval)
    gains, losses = np.arange(-bottom, 0) * interval, np.arange(top + 1) * interval
    deltas = np.concatenate(
        [np.exp(gains) * back(np.exp(-gains)) - np.expm1(gains), ahead(np.exp(losses))]
    )
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -bottom, top, deltas)


@lru_cache(maxsize=32)
def loss_distribution(pair: Pair, interval: float) -> Any:
    """Return the PrivacyLossDistribution (of dp-accounting) of one release."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    ahead = distribution(pair.with_unit, pair.without_unit, pair.noise, interval)
    if pair.symmetric:
        return PrivacyLossDistribution(ahead)
    back = distribution(pair.without_unit, pair.with_unit, pair.noise, interval)
    return PrivacyLossDistribution(ahead, back)


def _merged_parts(parts: Mapping[Pair, int]) -> list[CountedPair]:
    """Reduce the parts to at most _MOST_PARTS of each kind. Two similar parts are replaced by a pair that dominates
    both, starting where this costs least."""
    result: list[CountedPair] = []
    for kind in dict.fromkeys(type(pair) for pair in parts):
        alike = [(pair, count) for pair, count in parts.items() if type(pair) is kind]
        alike.sort(key=lambda part: (_size(part[0]), part[0].noise))
        while len(alike) > _MOST_PARTS:
            merged = [_merge(*both) for both in pairwise(alike)]
            extra = [
                count * _size(pair) - sum(n * _size(one) for one, n in both)
                for (pair, count), both in zip(merged, pairwise(alike), strict=True)
            ]
            best = extra.index(min(extra))
            alike[best : best + 2] = [merged[best]]
        result += alike
    return result


def _merge(one: CountedPair, other: CountedPair) -> CountedPair:
    return one[0].covering([other[0]]), one[1] + other[1]


def _size(pair: Pair) -> float:
    """Return approximately the mean square of one release's loss, up to a factor. It only serves to compare what
    merging costs."""
    rate: float = getattr(pair, "rate", 1.0)
    return (rate / pair.noise) ** 2


def epsilon(counts: Mapping[Pair, int], delta: float) -> float:
    """Return epsilon of this many releases of each pair. There must be at least one release."""
    parts = _merged_parts(counts)
    return float(composed(parts, _interval(parts)).get_epsilon_for_delta(delta))


def composed(parts: Sequence[CountedPair], interval: float) -> Any:
    """Return the loss distribution of all parts together."""
    result: Any = None
    for pair, count in parts:
        part = loss_distribution(pair, interval).self_compose(count)
        result = part if result is None else result.compose(part)
    return result
