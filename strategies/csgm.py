"""L2-CSGM, the coordinate-subsampled Gaussian mechanism with an L2 clip (Chen, Isik, Kairouz, No, Oh, Xu 2024).

Every client sends a random subset of the coordinates of its update. The subset is called its mask. There are two
kinds:

- `mask: own`: each client draws a mask of its own and keeps each coordinate with probability `rate`
  (`privacy.mechanisms.coordinate_sampling`). The server is trusted: it sees the masks and the values, and adds the
  noise (`strategies.noise.server`). The masks are secret from those who see only models. This secrecy counts as
  privacy, so almost the same amount of noise is enough as without compression.
- `mask: common`: after a randomised Hadamard rotation, all clients of a round send the same random set of coordinates,
  which is public. Secure aggregation can sum such uploads, and the devices add the noise
  (`strategies.noise.device`). The randomness of a public set adds no privacy.

Formal guarantees: see these modules. docs/strategies/csgm.md lists where the code corrects the paper's text.
"""

from dataclasses import replace
from typing import Any

import torch

from fedsketch.conf import Config
from fedsketch.conf.strategy.csgm import CsgmConfig
from fedsketch.privacy.mechanisms.coordinate_sampling import CoordinateSampling, default_peak
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.randomness import derived_key
from fedsketch.sketching.hadamard import HadamardSketch
from fedsketch.strategies.dp_fedavg import DPFedAvg
from fedsketch.strategies.local.batched import BatchedWork, batched_unit_rows
from fedsketch.strategies.local.made_once import LastMade
from fedsketch.strategies.local.update import unit_rows
from fedsketch.strategies.noise.device import DeviceNoise
from fedsketch.strategies.noise.server import ServerNoise
from fedsketch.strategies.rounds.base import DeviceHalf, LocalWork
from fedsketch.strategies.rounds.messages import Aggregate, Broadcast, Number
from fedsketch.strategies.rounds.sampling import CohortSampler
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Workload

SEED = "mask-seed"


class Csgm(DPFedAvg):
    """The server half: an optimiser step on the mean of the masked updates."""

    def __init__(
        self, config: Config, job: Workload, model: FlatModel, cohorts: CohortSampler
    ) -> None:
        self.settings = _settings(config)
        super().__init__(config, job, model, cohorts)
        self._clipped: float | None = None

    # ------------------------------------------------------------------ mask: own
    def plan_noise(self) -> DeviceNoise:
        if self._common:
            return super().plan_noise()
        law, multiplier = self._law(), self.config.privacy.noise_multiplier
        return ServerNoise(self.config, law.dim, 1, law.clip, multiplier, law)

    def _law(self) -> CoordinateSampling:
        clip, settings = self.config.privacy.fixed_clip, self.settings
        assert clip is not None  # or the config would not have passed
        usual = default_peak(clip, self.model.size, self.config.clients.per_round)
        return CoordinateSampling(
            dim=self.model.size,
            clip=clip,
            peak=usual if settings.peak is None else min(clip, settings.peak),
            rate=settings.rate,
            bits=settings.bits,
        )

    def _aggregate(
        self, server_round: int, mechanism: Mechanism, cohort: int, parts: list[Any]
    ) -> Aggregate:
        if isinstance(mechanism, CoordinateSampling):
            self._clipped = mechanism.clipped([vector for vector, _ in parts])
        return super()._aggregate(server_round, mechanism, cohort, parts)

    def metrics(self) -> dict[str, Any]:
        """Return the fraction of values that were clipped at Dinf. It has no noise: the trusted server counts it and
        sends it to no device."""
        return {} if self._common else {"server": "trusted", "clipped_fraction": self._clipped}

    def remarks(self) -> str:
        noise = self.noise
        if not isinstance(noise, ServerNoise):
            return ""
        trusted = (
            " The server is trusted: it sees every client's values and mask, and adds the noise."
        )
        if noise.multiplier is not None or self.settings.rate == 1.0:
            return trusted
        plain = replace(noise, law=replace(self._law(), rate=1.0)).noise_multiplier
        ratio = noise.noise_multiplier / plain
        return (
            f"{trusted} Without compression the noise multiplier would be {plain:.4g}: "
            f"this is {ratio:.4g} times as much."
        )

    # ------------------------------------------------------------------ mask: common
    @property
    def _common(self) -> bool:
        return self.settings.mask == "common"

    def upload_size(self, server_round: int) -> int:
        return _kept(self.settings, self.model.size) if self._common else self.model.size

    def broadcast_extras(
        self, server_round: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, Number]]:
        return {}, ({SEED: self._seed(server_round)} if self._common else {})

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        mean = aggregate.sum / self.units(aggregate)
        if self._common:
            mean = _sample(self.settings, self.model.size, self._seed(server_round)).adjoint(mean)
        self.optimizer.step(mean)

    def _seed(self, server_round: int) -> bytes:
        return derived_key(self.config.seed, "mask", server_round)


class CsgmDevice(DeviceHalf):
    """The device half: one row per client. An own mask is applied by the mechanism, a common one here."""

    def __init__(self) -> None:
        self._last = LastMade[HadamardSketch]()

    def rows(self, work: LocalWork) -> torch.Tensor:
        config = work.broadcast.config
        rows = unit_rows(config, work.model, work.shard, work.generator)
        return self._masked(rows, work.broadcast)

    def batched_rows(self, work: BatchedWork) -> torch.Tensor | None:
        rows = batched_unit_rows(work)
        return None if rows is None else self._masked(rows, work.broadcast)

    def _masked(self, rows: torch.Tensor, broadcast: Broadcast) -> torch.Tensor:
        """Apply the common mask, if the strategy uses one."""
        settings = _settings(broadcast.config)
        if settings.mask == "own":
            return rows
        seed = broadcast.numbers[SEED]
        assert isinstance(seed, bytes)
        return self._sample(settings, rows.shape[1], seed).forward(rows)

    def _sample(self, settings: CsgmConfig, d: int, seed: bytes) -> HadamardSketch:
        """Make the sketch once a round for all clients that share a process."""
        return self._last.of((settings, d, seed), lambda: _sample(settings, d, seed))


def _sample(settings: CsgmConfig, d: int, seed: bytes) -> HadamardSketch:
    """Return the common mask as a sketch, on the server or on a device."""
    return HadamardSketch(_kept(settings, d), d, int.from_bytes(seed, "big"))


def _kept(settings: CsgmConfig, d: int) -> int:
    """Return k, the number of coordinates that a common mask keeps."""
    return max(1, round(settings.rate * d))


def _settings(config: Config) -> CsgmConfig:
    assert isinstance(config.strategy, CsgmConfig)
    return config.strategy


SERVER, DEVICE = Csgm, CsgmDevice
