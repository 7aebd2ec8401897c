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

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

from torch import Tensor

from fedsketch.conf import Config
from fedsketch.conf.strategy.csgm import CsgmConfig
from fedsketch.delivery.steps import Step
from fedsketch.privacy.mechanisms.coordinate_sampling import CoordinateSampling, default_peak
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.randomness import derived_key
from fedsketch.sketching.hadamard import HadamardSketch
from fedsketch.strategies.algorithm import DeviceHalf, Payload, Vector
from fedsketch.strategies.noise.plan import NoisePlan
from fedsketch.strategies.noise.server import ServerNoise
from fedsketch.strategies.rounds.followed_strategy import FollowedStrategy
from fedsketch.strategies.rounds.messages import Broadcast
from fedsketch.tasks.models.flat_model import FlatModel

SEED = "mask-seed"
CsgmSettings = TypeVar("CsgmSettings", bound=CsgmConfig)


class Csgm(FollowedStrategy[CsgmSettings], Generic[CsgmSettings]):
    """The server half: an optimiser step on the mean of the masked updates."""

    def start(self) -> None:
        super().start()
        self._clipped: float | None = None

    @property
    def mask_is_common(self) -> bool:
        return self.settings.mask == "common"

    # ------------------------------------------------------------------ mask: own
    def plan_noise(self) -> NoisePlan:
        return self.device_noise() if self.mask_is_common else self.trusted_noise(self.upload())

    def upload(self) -> CoordinateSampling:
        """Return the mechanism of devices with masks of their own."""
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

    def trusted_noise(self, upload: CoordinateSampling) -> NoisePlan:
        """Return the plan of the trusted server's noise, if devices send such uploads."""
        return self.independent_noise(upload)

    def independent_noise(self, upload: CoordinateSampling) -> ServerNoise:
        """Return the same with noise that is independent in every round."""
        given = self.config.privacy.noise_multiplier
        return ServerNoise(self.config, upload.dim, 1, upload.clip, given, upload)

    def inspect(self, mechanism: Mechanism, uploads: Sequence[Vector]) -> None:
        if isinstance(mechanism, CoordinateSampling):
            self._clipped = mechanism.clipped(uploads)

    def metrics(self) -> dict[str, Any]:
        """Return the fraction of values that were clipped at Dinf. It has no noise: the trusted server counts it, sends
        it to no device, and tells no tracker (`conf.metric_names.NOISE_FREE`)."""
        if self.mask_is_common:
            return {}
        return {"server": "trusted", "clipped_fraction": self._clipped}

    def remarks(self) -> str:
        if self.mask_is_common:
            return ""
        trusted = (
            " The server is trusted: it sees every client's values and mask, and adds the noise."
        )
        if self.config.privacy.noise_multiplier is not None or self.settings.rate == 1.0:
            return trusted
        plain = self.trusted_noise(replace(self.upload(), rate=1.0)).noise_multiplier
        ratio = self.noise.noise_multiplier / plain
        return (
            f"{trusted} Without compression the noise multiplier would be {plain:.4g}: "
            f"this is {ratio:.4g} times as much."
        )

    # ------------------------------------------------------------------ mask: common
    def upload_length(self, server_round: int) -> int:
        d = self.model.size
        return _kept(self.settings, d) if self.mask_is_common else d

    def broadcast(self, server_round: int) -> Payload:
        if not self.mask_is_common:
            return Payload()
        return Payload(scalars={SEED: mask_seed(self.config, server_round)})

    @staticmethod
    def expand(config: Config, size: int, step: Step) -> Tensor:
        settings = cast(CsgmConfig, config.strategy)
        if settings.mask == "own":
            return step.mean
        return _sample(settings, size, mask_seed(config, step.round)).adjoint(step.mean)


class CsgmDevice(DeviceHalf[HadamardSketch | None]):
    """The device half: one row per client. An own mask is applied by the mechanism, a common one here."""

    def prepare(self, broadcast: Broadcast, model: FlatModel) -> HadamardSketch | None:
        settings = cast(CsgmConfig, broadcast.config.strategy)
        if settings.mask == "own":
            return None
        seed = broadcast.scalars[SEED]
        assert isinstance(seed, bytes)
        return _sample(settings, model.size, seed)

    def shorten(self, prepared: HadamardSketch | None, rows: Tensor) -> Tensor:
        return rows if prepared is None else prepared.forward(rows)


def mask_seed(config: Config, server_round: int) -> bytes:
    """Return the seed of a round's common mask. It is public."""
    return derived_key(config.seed, "mask", server_round)


def _sample(settings: CsgmConfig, d: int, seed: bytes) -> HadamardSketch:
    """Return the common mask as a sketch, on the server or on a device."""
    return HadamardSketch(_kept(settings, d), d, int.from_bytes(seed, "big"))


def _kept(settings: CsgmConfig, d: int) -> int:
    """Return k, the number of coordinates that a common mask keeps."""
    return max(1, round(settings.rate * d))


SERVER, DEVICE, REPLICA = Csgm, CsgmDevice, Csgm.replica
