"""Noise that a trusted server adds: how much of it a run needs, and what each round shows to those who see models.

Devices bring no noise (`Mechanism.share` is 0), so every sum has the same noise, whatever the cohort and whoever is
lost. Nothing is said about the server: it sees every upload as it is.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting.releases import Adversary, Release, WithoutReplacement
from fedsketch.privacy.accounting.releases import Sampling as SecretDraw
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.strategies.shared.device_noise import DeviceNoise, calibrated


@dataclass(frozen=True)
class ServerNoise(DeviceNoise):
    """As for noise of devices. `law` is what every device does with its upload, in every round; `multiplier` is over
    its bound."""

    law: Mechanism

    def mechanism(self, cohort: int, dim: int | None = None) -> Mechanism:
        return self.law

    def variance(self, cohort: int, clients: int) -> float:
        return self.noise_multiplier**2

    def asked(self, cohort: int) -> bool:
        return self.sizes.smallest <= cohort <= self.sizes.largest

    def releases(self, cohort: int, clients: int) -> dict[str, Release]:
        """What a round reveals. `model` and `client` see a model that was made with the noisy sum. Fellow participants
        know nothing of its noise. They know which of themselves were drawn, which leaves a draw among the others."""
        return {
            against: self._release(self.noise_multiplier, against, cohort, clients)
            for against in (Against.model, Against.client)
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
        if against is Against.client:
            fellows = self.sizes.fellows(cohort)
            draw, adversary = self._draw_without(fellows, cohort, clients), Adversary.CLIENT
        return self.law.seen(multiplier**2, self.unit, draw, adversary)

    def _draw_without(self, fellows: int, cohort: int, clients: int) -> SecretDraw:
        """Devices are told the same for every size of a cohort. So a Poisson draw stays what it is among the others; of
        a fixed-size one the fellows may all be left out, and the others are drawn the more."""
        draw = self._draw(cohort, clients)
        if not isinstance(draw, WithoutReplacement):
            return draw
        others = self.config.clients.total - fellows
        return WithoutReplacement(min(draw.size, others), others)


@lru_cache(maxsize=8)
def _multiplier(noise: ServerNoise) -> float:
    """The noise multiplier: the given one, or the one that the budget needs."""
    if noise.multiplier is not None:
        return noise.multiplier
    return calibrated(noise.config, noise._worst)
