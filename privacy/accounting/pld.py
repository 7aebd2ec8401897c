"""Privacy loss distributions of dominating pairs, composed by dp-accounting. Imported only where it is asked for: 1.3
s.

A pair's divergences at epsilons on a grid make a distribution of its privacy loss whose divergences are nowhere smaller
(connect the dots: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022); losses above the grid count as infinite.
Directions are kept apart: with the unit against without it, and the other way round.
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
"""A grid so fine, in steps per spread of the loss of one release, costs about 1e-5 of epsilon; the cost falls with the square."""
_MOST_STEPS = 2**19
_TAIL = 1e-22
"""Of the loss's mass: what lies beyond is charged in full."""

_MOST_PARTS = 12
"""Each takes some hundredths of a second to compose."""

Profile = Callable[[Curve], Curve]
Part = tuple[Pair, int]
"""So many releases of one pair."""


def _reach(noise: float) -> float:
    """Above this loss the divergence of the Gaussian without sampling, and so every other, is below _TAIL."""
    return 10.0 / noise + 0.5 / noise**2


@lru_cache(maxsize=256)
def _squared_spread(pair: Pair) -> float:
    """About the mean square of the privacy loss: 4 times the integral of the divergence over epsilon, for small
    losses."""
    epsilons = np.concatenate([[0.0], _reach(pair.noise) * np.geomspace(1e-8, 1.0, 400)])
    return 4.0 * float(np.trapezoid(pair.with_unit(np.exp(epsilons)), epsilons))


def _interval(parts: Sequence[Part]) -> float:
    """The step of the grid: a power of two, so that a growing run keeps its grid and what was computed on it."""
    squared = sum(count * _squared_spread(pair) for pair, count in parts)
    step = math.sqrt(squared / sum(count for _, count in parts)) / _STEPS_PER_SPREAD
    step = max(step, max(_reach(pair.noise) for pair, _ in parts) / _MOST_STEPS)
    return float(2.0 ** math.floor(math.log2(step)))


def _largest_loss(profile: Profile, noise: float, interval: float) -> int:
    """In steps: about where the divergence falls below _TAIL."""
    end = math.ceil(_reach(noise) / interval) + 1
    coarse = np.linspace(0.0, end, 513)
    above = np.flatnonzero(profile(np.exp(coarse * interval)) > _TAIL)
    return math.ceil(coarse[min(int(above[-1]) + 1, 512)]) if above.size else 1


def _distribution(ahead: Profile, back: Profile, noise: float, interval: float) -> Any:
    """Of one direction; for g < 1 its divergence follows from the other direction's."""
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
    """dp-accounting's PrivacyLossDistribution of one release."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    ahead = _distribution(pair.with_unit, pair.without_unit, pair.noise, interval)
    if pair.symmetric:
        return PrivacyLossDistribution(ahead)
    back = _distribution(pair.without_unit, pair.with_unit, pair.noise, interval)
    return PrivacyLossDistribution(ahead, back)


def _few(parts: Mapping[Pair, int]) -> list[Part]:
    """At most _MOST_PARTS of a kind: neighbours are booked as one pair that dominates them, those first for which it
    costs least."""
    few: list[Part] = []
    for kind in dict.fromkeys(type(pair) for pair in parts):
        alike = [(pair, count) for pair, count in parts.items() if type(pair) is kind]
        alike.sort(key=lambda part: (_size(part[0]), part[0].noise))
        while len(alike) > _MOST_PARTS:
            merged = [_together(*both) for both in pairwise(alike)]
            extra = [
                count * _size(pair) - sum(n * _size(one) for one, n in both)
                for (pair, count), both in zip(merged, pairwise(alike), strict=True)
            ]
            best = extra.index(min(extra))
            alike[best : best + 2] = [merged[best]]
        few += alike
    return few


def _together(one: Part, other: Part) -> Part:
    return one[0].covering([other[0]]), one[1] + other[1]


def _size(pair: Pair) -> float:
    """About the mean square of the loss of one release, up to a factor; a measure of what a coarser pair costs, nothing
    else."""
    rate: float = getattr(pair, "rate", 1.0)
    return (rate / pair.noise) ** 2


def epsilon(counts: Mapping[Pair, int], delta: float) -> float:
    """Epsilon of so many releases of each pair, at least one in all."""
    parts = _few(counts)
    interval = _interval(parts)
    composed: Any = None
    for pair, count in parts:
        part = loss_distribution(pair, interval).self_compose(count)
        composed = part if composed is None else composed.compose(part)
    return float(composed.get_epsilon_for_delta(delta))
