"""Noise inside local training (DP-SGD): how much of it a run needs, and what the devices do in a round.

Only a device's own noise counts, against every adversary (`privacy.mechanisms.noisy_training`). A round of T local
steps is T releases. The budget holds for every example of every client, even for a client that takes part in every
round.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from fedsketch.conf.schema import Accounting, Noise
from fedsketch.privacy.accounting.classic_conversion import classic_epsilon
from fedsketch.privacy.accounting.releases import Adversary, NoSampling, Release
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.strategies.noise.device import DeviceNoise, calibrated


@dataclass(frozen=True)
class TrainingNoise(DeviceNoise):
    """Like `DeviceNoise`, but `multiplier` is that of one local step. `share` is the mean number of examples of a
    client."""

    share: float

    def mechanism(self, cohort: int, dim: int | None = None) -> NoisyTraining:
        masked = self.config.secagg.noise is Noise.SKELLAM
        return replace(
            _one_device(self),
            dim=self.dim if dim is None else dim,
            bits=self.config.secagg.bits if masked else 0,
            clients=cohort,
        )

    @property
    def draw_is_secret(self) -> bool:
        """False: the guarantee does not use the server's draw of the cohort."""
        return False

    def worst(self) -> Release:
        """Return what a round reveals. It is the same for all rounds."""
        return self.releases(1, 1)[self.config.privacy.against]

    def round_of(self, multiplier: float) -> NoisyTraining:
        """Return the mechanism of one device's round with this noise multiplier."""
        local = self.config.strategy.local
        assert self.clip is not None
        rate = min(1.0, local.batch / self.share)
        return NoisyTraining(
            unit=self.unit,
            rows=self.rows,
            clip=self.clip,
            local_multiplier=multiplier,
            rate=rate,
            steps=local.steps,
            batch=rate * self.share,
            lr=local.lr,
            momentum=local.momentum,
            dim=self.dim,
        )

    def release(self, multiplier: float) -> Release:
        """Return what a round with this noise multiplier reveals, to any adversary."""
        return self.round_of(multiplier).release_to(1, self.unit, NoSampling(), Adversary.SERVER)

    def paper_epsilon(self) -> float:
        """Return the epsilon of all rounds by the classic conversion from Renyi DP, which papers use."""
        seen = self.release(self.noise_multiplier)
        return classic_epsilon(seen, self.config.rounds, self.config.privacy.delta)


@lru_cache(maxsize=8)
def _one_device(noise: TrainingNoise) -> NoisyTraining:
    multiplier = noise.multiplier
    if multiplier is None:
        paper = noise.config.privacy.accounting is Accounting.PAPER
        multiplier = calibrated(noise.config, noise.release, classic_epsilon if paper else None)
    return noise.round_of(multiplier)
