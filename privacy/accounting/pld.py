"""Privacy loss distributions of dominating pairs, composed by dp-accounting. Imported only where it is asked for: 1.3 s.

A pair's divergences at epsilons on a grid make a distribution of its privacy loss whose divergences are nowhere smaller (connect the
dots: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022); losses above the grid count as infinite. Directions are kept apart: with the
unit against without it, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from fedsketch.privacy.accounting.dominating_pairs import Pair, PlainPair
from fedsketch.privacy.accounting.renyi import Curve

INTERVAL = 1e-4
"""Discretisation of the privacy loss: dp-accounting's default."""
_TAIL = 1e-22
"""Of the loss's mass: what lies beyond is charged in full."""

Profile = Callable[[Curve], Curve]


def _largest_loss(profile: Profile, noise: float) -> int:
    """In steps of INTERVAL: about where the divergence falls below _TAIL. It has done so where the Gaussian's without sampling has."""
    end = int(np.ceil((10.0 / noise + 0.5 / noise**2) / INTERVAL)) + 1
    coarse = np.linspace(0.0, end, 513)
    above = np.flatnonzero(profile(np.exp(coarse * INTERVAL)) > _TAIL)
    return int(np.ceil(coarse[min(int(above[-1]) + 1, 512)])) if above.size else 1


def _distribution(ahead: Profile, back: Profile, noise: float) -> Any:
    """Of one direction; for g < 1 its divergence follows from the other direction's."""
    from dp_accounting.pld import pld_pmf

    top, bottom = _largest_loss(ahead, noise), _largest_loss(back, noise)
    gains, losses = np.arange(-bottom, 0) * INTERVAL, np.arange(top + 1) * INTERVAL
    deltas = np.concatenate(
        [np.exp(gains) * back(np.exp(-gains)) - np.expm1(gains), ahead(np.exp(losses))]
    )
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(INTERVAL, -bottom, top, deltas)


@lru_cache(maxsize=32)
def loss_distribution(pair: Pair) -> Any:
    """dp-accounting's PrivacyLossDistribution of one release."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    ahead = _distribution(pair.with_unit, pair.without_unit, pair.noise)
    if pair.symmetric:
        return PrivacyLossDistribution(ahead)
    back = _distribution(pair.without_unit, pair.with_unit, pair.noise)
    return PrivacyLossDistribution(ahead, back)


def epsilon(counts: Mapping[Pair, int], mu_squared: float, delta: float) -> float:
    """Epsilon of `counts[pair]` sampled releases and unsampled ones worth `mu_squared`."""
    composed: Any = None
    if mu_squared > 0.0:
        composed = loss_distribution(PlainPair(mu_squared**-0.5))
    for pair, count in counts.items():
        part = loss_distribution(pair).self_compose(count)
        composed = part if composed is None else composed.compose(part)
    return 0.0 if composed is None else float(composed.get_epsilon_for_delta(delta))
