"""Sums of integers reveal their scale: every number in them is a multiple of one over the scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsketch.conf.schema import Noise
from fedsketch.privacy.mechanisms.encoding import rotated
from fedsketch.strategies.algorithm import Strategy

_NEAR = 0.15  # mean distance from whole numbers: a quarter for a wrong scale, only float32's rounding for the right one


class Lattices:
    """The scales of cohorts of every size, computed once per round of a run."""

    def __init__(self) -> None:
        self._by_round: dict[int, dict[float, bool]] = {}  # whether sums are rotated, by scale

    def fitting(
        self, strategy: Strategy[Any], round: int, total: NDArray[np.float64]
    ) -> tuple[float, ...]:
        """Return the scales at which this sum consists of whole numbers; empty if there is only one scale to choose
        from."""
        if round not in self._by_round:
            self._by_round[round] = _scales(strategy, round)
        scales = self._by_round[round]
        if len(scales) < 2:
            return ()
        turned = rotated(total, round) if any(scales.values()) else total
        fitting = []
        for scale, rotates in scales.items():
            scaled = (turned if rotates else total) * scale
            if float(np.abs(scaled - np.rint(scaled)).mean()) < _NEAR:
                fitting.append(scale)
        return tuple(fitting)


def _scales(strategy: Strategy[Any], round: int) -> dict[float, bool]:
    noise = strategy.noise_of(round)
    if strategy.config.secagg.noise is not Noise.SKELLAM:
        return {}
    asked = [size for size in range(1, strategy.config.clients.total + 1) if noise.accepts(size)]
    made = [strategy.mechanism(round, size) for size in asked]
    return {float(getattr(one, "scale", 0.0)): bool(getattr(one, "rotate", False)) for one in made}
