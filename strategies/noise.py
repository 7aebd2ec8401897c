"""How much noise a run needs, who adds which share of it, and what each round releases to whom.

Every device adds Gaussian noise of variance (z C)^2 / m, where m is the smallest number of survivors with which a round is
applied. So the sum over any s >= m survivors carries at least the noise z C that the accountant books.
"""

import math
from dataclasses import dataclass

from conf import Config
from conf.schema import Against, Randomness, Sampling, Unit
from privacy import release
from privacy.calibration import calibrate
from privacy.release import Adversary, Release
from strategies.messages import Terms


@dataclass(frozen=True)
class NoisePlan:
    """The noise multiplier z of the sum, and what follows from it."""

    config: Config
    noise_multiplier: float

    def smallest_survivors(self, cohort: int) -> int:
        """With fewer than this many a round is not applied."""
        return max(1, cohort - math.floor(cohort * self.config.clients.tolerated_dropouts))

    def terms(self, cohort: int) -> Terms:
        """What each device of a cohort of this size must do."""
        clip = self.config.privacy.clip
        share = self.noise_multiplier / math.sqrt(self.smallest_survivors(cohort))
        return Terms(clip, 0.0 if clip is None else share * clip)

    def releases(self, cohort: int | None = None) -> dict[Against, Release]:
        """What a round with a cohort of this size (the usual one if not given) shows to each adversary.

        Unit: `privacy.unit`. Adjacency: zero-out (the unit's contribution is replaced by zero; its device still adds noise).
        - `model`: sees the models, so of each round only the noisy sum; the cohort is a secret of the server.
        - `server`: without secure aggregation it sees each device's vector under that device's noise alone.
        """
        size = self.config.clients.per_round if cohort is None else cohort
        alone = self.noise_multiplier / math.sqrt(self.smallest_survivors(size))
        return {
            Against.model: self._release(Adversary.MODEL, self.noise_multiplier, self._sampling()),
            Against.server: self._release(Adversary.SERVER, alone, release.NoSampling()),
        }

    def _release(
        self, adversary: Adversary, noise_multiplier: float, sampling: release.Sampling
    ) -> Release:
        return Release(
            mechanism=release.Gaussian(noise_multiplier),
            sampling=sampling,
            adjacency=release.Adjacency.ZERO_OUT,
            unit=release.Unit(self.config.privacy.unit.value),
            adversary=adversary,
        )

    def _sampling(self) -> release.Sampling:
        clients = self.config.clients
        if clients.per_round == clients.total:
            return release.NoSampling()
        if clients.sampling is Sampling.poisson:
            return release.Poisson(clients.per_round / clients.total)
        if clients.sampling is Sampling.passes:
            return release.FullPasses(-(-clients.total // clients.per_round))
        return release.WithoutReplacement(clients.per_round, clients.total)


def plan_noise(config: Config) -> NoisePlan:
    """The plan that meets the budget `privacy.epsilon` against `privacy.against` over all rounds."""
    privacy = config.privacy
    if privacy.noise_multiplier is not None:
        return NoisePlan(config, privacy.noise_multiplier)
    assert privacy.epsilon is not None
    multiplier = calibrate(
        lambda z: NoisePlan(config, z).releases()[privacy.against],
        rounds=config.rounds,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
    )
    return NoisePlan(config, multiplier)


def unit_count(config: Config, clients: int, examples: int) -> float:
    """What the noisy sum is divided by: a public number. `examples` is the size of the training set over all clients.

    Under Poisson sampling the true size of the cohort is secret, so the expected one stands in for it.
    """
    if config.clients.sampling is Sampling.poisson:
        clients = config.clients.per_round
    if config.privacy.unit is Unit.example:
        return clients * examples / config.clients.total
    return float(clients)


def guarantee(plan: NoisePlan) -> str:
    """What holds, against whom, for which unit and adjacency, in one sentence."""
    privacy = plan.config.privacy
    if plan.noise_multiplier == 0:
        return "No privacy: nothing is noised."
    if privacy.epsilon is None:
        bound = f"with noise multiplier {plan.noise_multiplier:.4g}"
    else:
        bound = f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g} (noise multiplier {plan.noise_multiplier:.4g})"
    seen = {
        Against.model: "all who see the models of every round, but not the server's messages",
        Against.server: "the server, which sees every message",
    }[privacy.against]
    sentence = f"{bound}, per {privacy.unit.value} (its contribution zeroed out), against {seen}."
    if privacy.randomness is Randomness.seeded:
        sentence += " NOT PRIVATE: privacy.randomness=seeded makes the noise reproducible."
    return sentence[0].upper() + sentence[1:]
