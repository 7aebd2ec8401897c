"""Sums of integers show their scale: every number of them is a whole multiple of one over it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.mechanisms.encoding import rotated
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.strategies.shared.base import FederatedStrategy

_NEAR = 0.15  # mean distance from whole numbers: a quarter for a wrong scale, and float32's rounding for the right one


def scales_that_fit(
    strategy: FederatedStrategy, round: int, total: NDArray[np.float64]
) -> tuple[float, ...]:
    """The scales, of cohorts of any size, at which this sum is made of whole numbers; none are told apart where there is only one."""
    clients = strategy.config.clients
    sizes = range(strategy.sizes.smallest, clients.total + 1)
    mechanisms = {_scale(strategy.mechanism(round, size)): size for size in sizes}
    if len(mechanisms) == 1:
        return ()
    fitting = []
    for scale, size in mechanisms.items():
        mechanism = strategy.mechanism(round, size)
        values = rotated(total, round) if getattr(mechanism, "rotate", False) else total
        scaled = values * scale
        if scale and float(np.abs(scaled - np.rint(scaled)).mean()) < _NEAR:
            fitting.append(scale)
    return tuple(fitting)


def _scale(mechanism: Mechanism) -> float:
    return float(getattr(mechanism, "scale", 0.0))
