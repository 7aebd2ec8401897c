"""Noise that a trusted server adds: how much of it a run needs, and what each round reveals to those who see models.

Devices add no noise (`Mechanism.variance_per_device` is 0), so every sum has the same noise, for any cohort and any
dropouts. There is no guarantee against the server: it sees every upload as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting.releases import (
    Adversary,
    Release,
    SecretDraw,
    WithoutReplacement,
)
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.strategies.noise.plan import NoisePlan, calibrated


@dataclass(frozen=True)
class ServerNoise(NoisePlan):
    """Noise of a trusted server. `upload` is the mechanism that every device applies to its upload in every round.
    `multiplier` is relative to the bound of `upload`, and is computed from the budget if it is None."""

    multiplier: float | None
    upload: Mechanism

    def mechanism(self, cohort: int, dim: int | None = None) -> Mechanism:
        return self.upload

    def variance(self, cohort: int, clients: int) -> float:
        return self.noise_multiplier**2

    def releases(self, cohort: int, clients: int) -> dict[str, Release]:
        """Return what a round reveals. `model` and `client` see a model that was made with the noisy sum. Colluding
        clients (`client`) know nothing about its noise. They know which of themselves were drawn, so only the draw
        among the others is a secret from them."""
        return {
            against: self.release(self.noise_multiplier, against, cohort, clients)
            for against in (Against.MODEL, Against.CLIENT)
        }

    @property
    def trusts_server(self) -> bool:
        return True

    def worst(self) -> Release:
        return self.worst_with(self.noise_multiplier)

    @cached_property
    def noise_multiplier(self) -> float:
        return calibrated_multiplier(self) if self.multiplier is None else self.multiplier

    def worst_with(self, multiplier: float) -> Release:
        """Return the most that a round with this noise multiplier reveals to the adversary of the budget."""
        largest = self.sizes.largest
        against, fewest = self.config.privacy.against, self.sizes.survivors(largest)
        return self.release(multiplier, against, largest, fewest)

    def release(self, multiplier: float, against: Against, cohort: int, clients: int) -> Release:
        """Return what a round with this noise multiplier reveals to an adversary."""
        draw, adversary = self.secret_draw(cohort, clients), Adversary.MODEL
        if against is Against.CLIENT:
            colluding_clients = self.sizes.colluding_clients(cohort)
            draw, adversary = (
                self.draw_without(colluding_clients, cohort, clients),
                Adversary.CLIENT,
            )
        return self.upload.release_to(multiplier**2, self.unit, draw, adversary)

    def draw_without(self, colluding_clients: int, cohort: int, clients: int) -> SecretDraw:
        """Return the draw as colluding clients see it. Devices get the same message for every size of a cohort, so a
        Poisson draw among the other clients is unchanged. For a fixed-size draw the worst case is that no colluding
        client was drawn: then the others were drawn with a higher probability."""
        draw = self.secret_draw(cohort, clients)
        if not isinstance(draw, WithoutReplacement):
            return draw
        others = self.config.clients.total - colluding_clients
        return self.fixed_draw(min(draw.size, others), others)


@lru_cache(maxsize=8)
def calibrated_multiplier(plan: ServerNoise) -> float:
    """Return the noise multiplier that the budget requires."""
    return calibrated(plan.config, plan.worst_with)
