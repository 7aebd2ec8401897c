"""Noise that a trusted server adds: how much of it a run needs, and what each round reveals to those who see models.

Devices add no noise (`Mechanism.variance_per_device` is 0), so every sum has the same noise, for any cohort and any
dropouts. There is no guarantee against the server: it sees every upload as it is.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting.releases import Adversary, Release, SecretDraw, WithoutReplacement
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.strategies.noise.device import DeviceNoise, calibrated


@dataclass(frozen=True)
class ServerNoise(DeviceNoise):
    """Like `DeviceNoise`. `law` is the mechanism that every device applies to its upload in every round. `multiplier`
    is relative to the bound of `law`."""

    law: Mechanism

    def mechanism(self, cohort: int, dim: int | None = None) -> Mechanism:
        return self.law

    def variance(self, cohort: int, clients: int) -> float:
        return self.noise_multiplier**2

    def accepts(self, cohort: int) -> bool:
        return self.sizes.smallest <= cohort <= self.sizes.largest

    def releases(self, cohort: int, clients: int) -> dict[str, Release]:
        """Return what a round reveals. `model` and `client` see a model that was made with the noisy sum. Colluding
        clients (`client`) know nothing about its noise. They know which of themselves were drawn, so only the draw
        among the others is a secret from them."""
        return {
            against: self._release(self.noise_multiplier, against, cohort, clients)
            for against in (Against.MODEL, Against.CLIENT)
        }

    @property
    def trusted(self) -> bool:
        return True

    def worst(self) -> Release:
        return self._worst(self.noise_multiplier)

    @cached_property
    def noise_multiplier(self) -> float:
        return _multiplier(self)

    def _worst(self, multiplier: float) -> Release:
        largest = self.sizes.largest
        against, fewest = self.config.privacy.against, self.sizes.survivors(largest)
        return self._release(multiplier, against, largest, fewest)

    def _release(self, multiplier: float, against: Against, cohort: int, clients: int) -> Release:
        draw, adversary = self._draw(cohort, clients), Adversary.MODEL
        if against is Against.CLIENT:
            colluding_clients = self.sizes.colluding_clients(cohort)
            draw, adversary = (
                self._draw_without(colluding_clients, cohort, clients),
                Adversary.CLIENT,
            )
        return self.law.release_to(multiplier**2, self.unit, draw, adversary)

    def _draw_without(self, colluding_clients: int, cohort: int, clients: int) -> SecretDraw:
        """Return the draw as colluding clients see it. Devices get the same message for every size of a cohort, so a
        Poisson draw among the other clients is unchanged. For a fixed-size draw the worst case is that no colluding
        client was drawn: then the others were drawn with a higher probability."""
        draw = self._draw(cohort, clients)
        if not isinstance(draw, WithoutReplacement):
            return draw
        others = self.config.clients.total - colluding_clients
        return WithoutReplacement(min(draw.size, others), others)


@lru_cache(maxsize=8)
def _multiplier(noise: ServerNoise) -> float:
    """Return the noise multiplier: the given one, or the one that the budget requires."""
    if noise.multiplier is not None:
        return noise.multiplier
    return calibrated(noise.config, noise._worst)
