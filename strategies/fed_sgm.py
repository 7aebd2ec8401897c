"""Fed-SGM, federated learning with the sketched Gaussian mechanism (Li, Chen, Banerjee 2025).

A round:
1. Client i runs K local SGD steps from the model theta. Its update is Delta_i = theta - theta_K, d numbers.
2. It sends the sketch s_i = R Delta_i, b numbers, clipped and with noise. R (b x d) is random with N(0, 1/b) entries.
3. The server multiplies the mean of the sketches by R^T ("desketches" it), and takes an optimiser step along the
   result. The optimiser's moments are post-processing, so they cost no privacy.

Neither side stores R: both make it from the round's seed, tile by tile. docs/strategies/fed_sgm.md lists where the
code corrects the paper's text.

Formal guarantees. There are two ways to account for them (`strategy.accounting`):
- `r_public`: the guarantees of `strategies.noise.device`, with an upload of b numbers. They hold also against
  those who know R. The last step before the noise clips the sketch, so this clip is the sensitivity.
- `r_secret`: holds only against an eavesdropper who sees the noisy sums, and neither R, nor a model made with it, nor
  a single upload (`privacy.accounting.sketched_gaussian`). It counts R's randomness as privacy.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch

from fedsketch.conf import Config
from fedsketch.conf.schema import Against, Randomness
from fedsketch.conf.strategy.fed_sgm import FedSgmConfig, r_secret_needs
from fedsketch.delivery.steps import Step
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    NoSampling,
    Release,
    SketchedGaussian,
    SketchKnowledge,
)
from fedsketch.privacy.mechanisms.clipping import clip_rows
from fedsketch.privacy.mechanisms.randomness import derived_key
from fedsketch.sketching.count_sketch import CountSketch
from fedsketch.sketching.gaussian import GaussianSketch
from fedsketch.sketching.hadamard import HadamardSketch
from fedsketch.sketching.identity import IdentitySketch
from fedsketch.sketching.sketch import Sketch
from fedsketch.strategies.algorithm import DeviceHalf, Payload
from fedsketch.strategies.noise.device import DeviceNoise
from fedsketch.strategies.noise.plan import calibrated
from fedsketch.strategies.rounds.codec import sketch_size
from fedsketch.strategies.rounds.followed_strategy import FollowedStrategy
from fedsketch.strategies.rounds.messages import Broadcast
from fedsketch.tasks.models.flat_model import FlatModel

SEED = "sketch-seed"
EAVESDROPPER = "eavesdropper (r_secret)"  # the name under which its epsilon is shown
_EAVESDROPPER_IN_WORDS = (
    "an eavesdropper who sees the noisy sums, and neither the sketch's seed, "
    "nor a model, nor a single upload"
)
# The probability that the Gaussian sketch of a clipped update is longer than the last clip.
_CUT_PROBABILITY = 1e-20
_SKETCHES: dict[str, Callable[[int, int, int], Sketch]] = {
    "gaussian": GaussianSketch,
    "hadamard": HadamardSketch,
    "count_sketch": CountSketch,
}


class FedSgm(FollowedStrategy[FedSgmConfig]):
    """The server half: an optimiser step on the desketched mean."""

    def start(self) -> None:
        super().start()
        self._secret_seed: bytes | None = None

    def upload_length(self, server_round: int) -> int:
        return _upload_length(self.settings, self.model.size)

    def broadcast(self, server_round: int) -> Payload:
        """Send the seed of R. For `r_secret` it is drawn anew in each round, so that nobody can know it earlier. (A
        reproducible run derives it from its public seed instead.)"""
        secret = self._r_secret and self.config.privacy.randomness is Randomness.SECRET
        self._secret_seed = secrets.token_bytes(16) if secret else None
        return Payload(scalars={SEED: self._secret_seed or public_seed(self.config, server_round)})

    def given(self, server_round: int) -> dict[str, torch.Tensor]:
        """Return the seed of R if nobody can compute it."""
        seed = self._secret_seed
        return {} if seed is None else {SEED: torch.tensor(list(seed), dtype=torch.uint8)}

    @staticmethod
    def expand(config: Config, size: int, step: Step) -> torch.Tensor:
        """Return R^T times the mean."""
        seed = public_seed(config, step.round)
        if SEED in step.given:
            seed = bytes(step.given[SEED].tolist())
        return make_sketch(cast(FedSgmConfig, config.strategy), size, seed).adjoint(step.mean)

    # ------------------------------------------------------------------ r_public and r_secret
    def plan_noise(self) -> DeviceNoise:
        noise = self.device_noise()
        if noise.clip is not None:
            noise = replace(noise, clip=noise.clip * self._stretch)
        given = self.config.privacy.noise_multiplier is not None
        if self._r_secret and not given:
            cohort, dim = self.config.clients.per_round, noise.dim
            rows = cohort * noise.rows
            secret = calibrated(self.config, lambda z: self._to_eavesdropper(z, dim, rows))
            noise = replace(noise, multiplier=secret / self._stretch)
        return noise

    def releases(self, server_round: int, cohort: int, clients: int) -> dict[str, Release]:
        """Return the usual releases, and the one to the eavesdropper if the theorem of `r_secret` covers the run."""
        usual = super().releases(server_round, cohort, clients)
        if r_secret_needs(self.config):
            return usual
        noise = self.noise
        mechanism, variance = noise.mechanism(cohort), noise.variance(cohort, clients)
        # Relative to privacy.clip, which bounds the update before it is sketched.
        multiplier = mechanism.noise_multiplier(variance, self.noise.unit) * self._stretch
        rows = cohort * self.noise.rows
        return {**usual, EAVESDROPPER: self._to_eavesdropper(multiplier, self.noise.dim, rows)}

    def worst(self, server_round: int) -> Release:
        if not self._r_secret:
            return super().worst(server_round)
        cohort = self.config.clients.per_round
        return self.releases(server_round, cohort, self.sizes.survivors(cohort))[EAVESDROPPER]

    @property
    def budget_adversary(self) -> str:
        return EAVESDROPPER if self._r_secret else super().budget_adversary

    def adversary(self, name: str) -> str:
        return _EAVESDROPPER_IN_WORDS if name == EAVESDROPPER else super().adversary(name)

    def remarks(self) -> str:
        """Say what all rounds cost, by `r_public` and by `r_secret`."""
        if self.settings.sketch != "gaussian":
            return ""
        cohort = self.config.clients.per_round
        shown = self.releases(1, cohort, self.sizes.survivors(cohort))
        spent = {name: self._spent(seen) for name, seen in shown.items()}
        public = ", ".join(f"{spent[name]} against {name.value}" for name in Against)
        sentence = f" r_public, which holds even against those who know the sketch, is {public}"
        if self._r_secret:
            return f"{sentence}."
        needs = r_secret_needs(self.config)
        secret = (
            f"no theorem covers (it needs {', '.join(needs)})"
            if needs
            else f"is {spent[EAVESDROPPER]}"
        )
        return f"{sentence}; r_secret, which holds only against {_EAVESDROPPER_IN_WORDS}, {secret}."

    @property
    def _r_secret(self) -> bool:
        """Whether the privacy budget holds against the eavesdropper only."""
        return self.settings.accounting == "r_secret"

    def _to_eavesdropper(self, multiplier: float, dim: int, rows: int) -> Release:
        """Return what one round reveals to the eavesdropper. The noise multiplier is relative to the clip of an update
        before it is sketched."""
        # Rounded down to 12 digits, so that the accountant books exactly the release that was calibrated.
        rounded = float(f"{multiplier * (1 - 1e-11):.11e}")
        return Release(
            SketchedGaussian(rounded, dim, rows, SketchKnowledge.SECRET),
            NoSampling(),
            Adjacency.ZERO_OUT,
            self.config.privacy.unit,
            Adversary.EAVESDROPPER,
        )

    @property
    def _stretch(self) -> float:
        return stretch_by_sketch(self.settings, self.model.size)

    def _spent(self, seen: Release) -> str:
        """Return the epsilon of all rounds, as text."""
        accountant = Accountant(self.config.privacy.delta)
        accountant.record(seen, self.config.rounds)
        epsilon = accountant.epsilon().epsilon
        return f"epsilon {epsilon:.4g}" if math.isfinite(epsilon) else "no guarantee"


@dataclass(frozen=True)
class FedSgmPrepared:
    """The sketch of a round, and the clip that is applied before it, if any."""

    sketch: Sketch
    clip_before: float | None


class FedSgmDevice(DeviceHalf[FedSgmPrepared]):
    """The device half: R Delta for every privacy unit, clipped before if `strategy.clip=before`."""

    def prepare(self, broadcast: Broadcast, model: FlatModel) -> FedSgmPrepared:
        settings, seed = cast(FedSgmConfig, broadcast.config.strategy), broadcast.scalars[SEED]
        assert isinstance(seed, bytes)
        clip = None if settings.clip == "after" else broadcast.config.privacy.fixed_clip
        return FedSgmPrepared(make_sketch(settings, model.size, seed), clip)

    def shorten(self, prepared: FedSgmPrepared, rows: torch.Tensor) -> torch.Tensor:
        clip = prepared.clip_before
        return prepared.sketch.forward(rows if clip is None else clip_rows(rows, clip))

    def is_costly(self, prepared: FedSgmPrepared) -> bool:
        return isinstance(prepared.sketch, GaussianSketch)


def stretch_by_sketch(settings: FedSgmConfig, d: int) -> float:
    """Return the norm to which an uploaded row is clipped, divided by privacy.clip.

    A device always clips the row that it uploads, as its last step. With `strategy.clip=before` the update was already
    clipped to C before sketching. Then the last clip should leave its sketch unchanged, so it is C times this factor:
    - gaussian: the squared norm of R x, for a fixed x, is distributed as |x|^2 chi^2_b / b. The factor is exceeded
      with probability 1e-20. Whoever knows R can find an x that R makes longer, by up to 1 + sqrt(d/b). Such a sketch
      is clipped, so the bound holds for every x and R.
    - hadamard: the sketch is sqrt(m/b) times a part of a rotation of R^m, so the factor is sqrt(m/b), the largest
      possible stretch. m is d rounded up to a power of 2.
    - identity: 1.
    - count_sketch: not offered with `clip=before`, because the stretch is up to sqrt(d), if all coordinates fall into
      one bucket.
    """
    size = _upload_length(settings, d)
    if settings.clip == "before" and settings.sketch == "gaussian":
        from scipy import stats  # imported here, because it takes half a second

        return math.sqrt(float(stats.chi2.isf(_CUT_PROBABILITY, size)) / size)
    if settings.clip == "before" and settings.sketch == "hadamard":
        return math.sqrt((1 << (d - 1).bit_length()) / size)
    return 1.0


def make_sketch(settings: FedSgmConfig, d: int, seed: bytes) -> Sketch:
    """Return the sketch of a round, on the server or on a device."""
    if settings.sketch == "identity":
        return IdentitySketch(d)
    kind = _SKETCHES[settings.sketch]
    return kind(_upload_length(settings, d), d, int.from_bytes(seed, "big"))


def public_seed(config: Config, server_round: int) -> bytes:
    """Return the seed of R that everybody can compute."""
    settings = cast(FedSgmConfig, config.strategy)
    fresh = (server_round,) if settings.seed_per == "round" else ()
    return derived_key(config.seed, "sketch", *fresh)


def _upload_length(settings: FedSgmConfig, d: int) -> int:
    return d if settings.sketch == "identity" else sketch_size(settings.sketch_dim, d)


SERVER, DEVICE, REPLICA = FedSgm, FedSgmDevice, FedSgm.replica
