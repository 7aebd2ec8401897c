"""What a plan of the noise of a run is: how noisy every round is, and what it reveals to whom.

There is one plan for each kind of noise: noise that devices add to uploads (`strategies.noise.device`), noise of a
trusted server (`strategies.noise.server`, `strategies.noise.matrix`), and noise inside local training
(`strategies.noise.training`). A strategy chooses its plan (`Strategy.plan_noise`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from fedsketch.conf import Config
from fedsketch.conf.schema import Against, CohortSampling
from fedsketch.privacy.accounting import poisson
from fedsketch.privacy.accounting.calibration import Price, calibrate
from fedsketch.privacy.accounting.releases import (
    Adversary,
    FullPasses,
    NoSampling,
    Poisson,
    Release,
    SecretDraw,
    Unit,
    WithoutReplacement,
)
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.strategies.noise.sizes import CohortSizes


@dataclass(frozen=True)
class NoisePlan(ABC):
    """The noise of a run.

    An upload has at most `dim` numbers. A client has at most `rows` rows, each with a norm of at most `clip`. With
    `known_cohort` the draw of the cohort does not count as a secret.
    """

    config: Config
    dim: int
    rows: int
    clip: float | None
    known_cohort: bool = field(default=False, kw_only=True)

    # ------------------------------------------------------------------ what every plan says
    @abstractmethod
    def mechanism(self, cohort: int, dim: int | None = None) -> Mechanism:
        """Return the mechanism that each device of a cohort of this size applies to an upload of `dim` numbers
        (default: the longest upload)."""

    @abstractmethod
    def variance(self, cohort: int, clients: int) -> float:
        """Return the variance of the noise in a sum over this many clients of a cohort, including the server's
        noise."""

    @abstractmethod
    def releases(self, cohort: int, clients: int) -> dict[str, Release]:
        """Return what a round reveals to each adversary, if `clients` of a cohort of this size are in a sum. The upload
        is the longest of the run."""

    @abstractmethod
    def worst(self) -> Release:
        """Return the most that a round can reveal to the adversary of the budget, for any size of the cohort and any
        dropouts."""

    @property
    @abstractmethod
    def noise_multiplier(self) -> float:
        """The standard deviation of the sum's noise divided by the sensitivity, in the worst case. Noise that the
        adversary of the budget knows does not count."""

    # ------------------------------------------------------------------ what most plans share
    @property
    def sizes(self) -> CohortSizes:
        return CohortSizes(self.config)

    @property
    def unit(self) -> Unit:
        return self.config.privacy.unit

    def accepts(self, cohort: int) -> bool:
        """Return whether a cohort of this size is asked to train."""
        return self.sizes.smallest <= cohort <= self.sizes.largest

    @property
    def own_noise_suffices(self) -> bool:
        """Whether the noise of each device must be enough for its upload alone, without that of the others."""
        return self.config.privacy.against is Against.SERVER and not self.sizes.masked

    @property
    def trusts_server(self) -> bool:
        """Whether the server is trusted with every upload, so that there is no guarantee against it."""
        return False

    @property
    def draw_is_secret(self) -> bool:
        """Whether the draw of a cohort counts as a secret, so that nothing others see may depend on the cohort's
        size."""
        private, drawn = self.config.privacy.private, self.config.clients.are_drawn
        return private and drawn and not self.known_cohort and not self.own_noise_suffices

    def secret_draw(self, cohort: int, clients: int) -> SecretDraw:
        """Return the draw of a cohort that has turned out to have this size, as far as it is a secret from those who
        see only models and a theorem covers it."""
        settings = self.config.clients
        if settings.per_round == settings.total or self.known_cohort:
            return NoSampling()
        if settings.sampling.in_passes:
            return FullPasses(settings.rounds_per_pass)
        if self.draw_is_secret and settings.sampling is CohortSampling.POISSON:
            return Poisson(settings.per_round / settings.total, missed=_missed(self))
        if self.draw_is_secret:
            return self.fixed_draw(settings.per_round, settings.total)
        # The amount of noise reveals the size of the cohort. Given its size, it is a fixed-size draw. If some clients
        # dropped out, those who know which clients are offline can infer more.
        complete = clients == cohort and not settings.tolerated_dropouts
        return self.fixed_draw(cohort, settings.total) if complete else NoSampling()

    def fixed_draw(self, size: int, population: int) -> WithoutReplacement:
        """Return a draw of this many clients, as the accountant must treat it."""
        return WithoutReplacement(
            size, population, with_memory=self.config.strategy.devices_remember
        )

    @abstractmethod
    def draw_without(self, colluding_clients: int, cohort: int, clients: int) -> SecretDraw:
        """Return the draw as colluding clients see it, who know which of themselves were drawn."""

    def worst_draw(self) -> tuple[SecretDraw, Adversary]:
        """Return the draw that is secret from the adversary of the budget, in the worst case, and that adversary."""
        against, cohort = self.config.privacy.against, self.sizes.largest
        if against is Against.SERVER:
            return NoSampling(), Adversary.SERVER
        fewest = self.sizes.survivors(cohort)
        if against is Against.MODEL:
            return self.secret_draw(cohort, fewest), Adversary.MODEL
        colluding_clients = self.sizes.colluding_clients(cohort)
        return self.draw_without(colluding_clients, cohort, fewest), Adversary.CLIENT


def calibrated(
    config: Config, template: Callable[[float], Release], price: Price | None = None
) -> float:
    """Return the smallest noise multiplier with which all rounds of a run fit its budget. For `price` see
    `calibrate`."""
    privacy = config.privacy
    assert privacy.epsilon is not None  # or the config would not have passed
    return calibrate(
        template,
        rounds=config.rounds,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        price=price,
    )


@lru_cache(maxsize=64)
def _missed(plan: NoisePlan) -> float:
    """Return the probability that one unit decides whether a cohort is asked at all: without it those drawn are too
    few, with it they are enough. The fewer clients are online, the larger it is, so as many are assumed offline as a
    round tolerates dropouts."""
    settings, sizes = plan.config.clients, plan.sizes
    rate = settings.per_round / settings.total
    there = CohortSizes(plan.config).survivors(settings.total)
    decided = [n for n in range(1, sizes.largest) if not plan.accepts(n) and plan.accepts(n + 1)]
    return sum(
        max(poisson.missed(rate, population, n + 1) for population in (there, settings.total))
        for n in decided
    )
