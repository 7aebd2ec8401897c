"""Noise of a trusted server that is correlated over rounds, so that the models contain less of it.

In round t of a pass the server adds row t of C^-1 Z, where Z is independent Gaussian noise. A pass, in which every
client takes part once, is one release (`privacy.accounting.factorisation`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting.releases import (
    CoordinateSampledGaussian,
    FullPasses,
    Gaussian,
    MatrixGaussian,
    NoiseLaw,
    Release,
    SecretDraw,
)
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.strategies.noise.plan import NoisePlan, calibrated
from fedsketch.strategies.noise.server import ServerNoise


@dataclass(frozen=True)
class MatrixNoise(NoisePlan):
    """The plan of one round. `independent` is the plan without correlation.

    The noise multiplier is the standard deviation of Z divided by the sensitivity of a pass, which is the clip times
    `column_norm`. The noise in the sum of a round has `row_norm` times the standard deviation of Z.
    """

    independent: ServerNoise
    column_norm: float
    row_norm: float
    rounds_per_pass: int

    @property
    def trusts_server(self) -> bool:
        return True

    def mechanism(self, cohort: int, dim: int | None = None) -> Mechanism:
        return self.independent.upload

    def variance(self, cohort: int, clients: int) -> float:
        return (self.noise_multiplier * self.column_norm * self.row_norm) ** 2

    @cached_property
    def noise_multiplier(self) -> float:
        given = self.independent.multiplier
        # Rounds differ in their row norm only, on which the multiplier does not depend.
        return _multiplier(replace(self, row_norm=1.0)) if given is None else given

    def releases(self, cohort: int, clients: int) -> dict[str, Release]:
        return {
            against: self._release(self.noise_multiplier, against, cohort, clients)
            for against in (Against.MODEL, Against.CLIENT)
        }

    def worst(self) -> Release:
        return self.worst_with(self.noise_multiplier)

    def worst_with(self, multiplier: float) -> Release:
        """Return the most that a round with this noise multiplier reveals to the adversary of the budget."""
        return self._correlated(self.independent.worst_with(multiplier * self.column_norm))

    def draw_without(self, colluding_clients: int, cohort: int, clients: int) -> SecretDraw:
        return self.independent.draw_without(colluding_clients, cohort, clients)

    def _release(self, multiplier: float, against: Against, cohort: int, clients: int) -> Release:
        single = self.independent.release(multiplier * self.column_norm, against, cohort, clients)
        return self._correlated(single)

    def _correlated(self, single: Release) -> Release:
        """Return the release of a round as part of a pass, from that of the single round."""
        law: NoiseLaw
        if isinstance(single.law, Gaussian):
            law = MatrixGaussian(single.law.noise_multiplier, self.column_norm)
        else:
            assert isinstance(single.law, CoordinateSampledGaussian)
            law = replace(single.law, column_norm=self.column_norm)
        return replace(single, law=law, sampling=FullPasses(self.rounds_per_pass))


@lru_cache(maxsize=8)
def _multiplier(plan: MatrixNoise) -> float:
    return calibrated(plan.config, plan.worst_with)
