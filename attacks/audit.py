"""An audit, from a configuration to its verdict: which scenes are simulated for which adversary, and what the scores
prove."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from fedsketch.attacks import scores
from fedsketch.attacks.canaries import CanaryWorkload
from fedsketch.attacks.cohorts import Draw
from fedsketch.attacks.evaluations import EvaluationSimulator
from fedsketch.attacks.scene import Scene, SceneSimulator, Trial
from fedsketch.attacks.shrink import ROUNDS, AuditRun, shrink
from fedsketch.attacks.statistics import GaussianFit, Sample, counted_epsilon
from fedsketch.conf import Config
from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig
from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting.releases import (
    DrawnBy,
    FullPasses,
    Poisson,
    Release,
    Unit,
    WithoutReplacement,
)
from fedsketch.runtime.environment import simulated_devices
from fedsketch.server.accounts import Accounts
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.noise.sizes import CohortSizes

TRIALS = 4000
SHOWN_ERROR = 0.05  # error probability of the bounds in the table
TRAINING, EVALUATIONS = "training", "evaluations"
ALARM_ERROR = 1e-4  # probability that any bound of a sound run exceeds its claim


@dataclass(frozen=True)
class Finding:
    """What the scores of one adversary prove about one claim, in one scene."""

    adversary: str
    scene: Scene
    claimed: float | None  # None: nothing is claimed against this adversary
    delta: float
    sample: Sample
    what: str = TRAINING

    @property
    def fit(self) -> GaussianFit:
        return GaussianFit(self.sample)

    @property
    def fitted(self) -> float:
        return self.fit.epsilon(self.delta)

    @property
    def fitted_at_least(self) -> float:
        return self.fit.lower_epsilon(self.delta, SHOWN_ERROR)

    @property
    def counted_at_least(self) -> float:
        return counted_epsilon(self.sample, self.delta, SHOWN_ERROR)

    @property
    def trials(self) -> int:
        return len(self.sample.absent) + len(self.sample.present)

    def sure(self, error: float) -> float:
        """Return the larger of the two lower bounds; it is wrong with probability at most `error`."""
        return max(
            self.fit.lower_epsilon(self.delta, error / 2),
            counted_epsilon(self.sample, self.delta, error / 2),
        )


@dataclass(frozen=True)
class Report:
    """All findings of an audit, and the run that was simulated."""

    run: AuditRun
    findings: tuple[Finding, ...]

    def exceeded(self, error: float = ALARM_ERROR) -> list[Finding]:
        """Return the findings that prove a claim wrong. A sound run has any with probability at most `error`."""
        of_each = error / max(1, len(self.findings))
        return [
            one
            for one in self.findings
            if one.claimed is not None and one.sure(of_each) > one.claimed
        ]


def audit(
    config: Config,
    trials: int = TRIALS,
    rounds: int = ROUNDS,
    workers: int = 1,
    adversaries: Sequence[str] = tuple(Against),
) -> Report:
    """Simulate a run until each of these adversaries has about this many scores. Its evaluations on devices, if it has
    any, are audited separately: what both cost together follows from composition."""
    run = shrink(config, rounds)
    kinds: dict[str, type[SceneSimulator]] = {TRAINING: SceneSimulator}
    if isinstance(config.evaluation, FederatedEvaluationConfig):
        kinds[EVALUATIONS] = EvaluationSimulator
    with simulated_devices(run.config), _processes(workers) as pool:
        findings = [
            finding
            for what, kind in kinds.items()
            for finding in _findings(run, what, kind, trials, workers, adversaries, pool)
        ]
    return Report(run, tuple(findings))


def _findings(
    run: AuditRun,
    what: str,
    kind: type[SceneSimulator],
    trials: int,
    workers: int,
    adversaries: Sequence[str],
    pool: Executor | None,
) -> Iterator[Finding]:
    workload = CanaryWorkload(run.config, run.examples)
    strategy = kind.coordinator_of(run, workload, None).strategy
    claims, delta = _claims(strategy), run.config.privacy.delta
    releases = {name: one for name, one in _releases(strategy).items() if name in adversaries}
    for scene in scenes(releases, strategy.sizes.masked):
        trials_of_scene = _simulate(run, scene, kind, trials, workers, pool)
        for name in scene.adversaries:
            values = _scored(run, scene, name, trials_of_scene, releases[name])
            yield Finding(
                name, scene, claims[name], delta, scores.sample(trials_of_scene, values), what
            )


def scenes(releases: Mapping[str, Release], masked: bool) -> list[Scene]:
    """Return the scenes to simulate, which depend on what is claimed.

    - No sampling: the adversary chooses the cohorts. Sampling on the device: the same, since no other draw matters.
    - Full passes: the run's draw, which need not be secret.
    - Poisson: the run's draw, with the draws of all others known, as the theorem allows.
    - A draw of known size: all others push against the canary. A draw that fellow clients see: they are in every
      cohort.
    - Whole clients drawn, for the protection of an example: its neighbours may reveal that they were drawn, so the draw
      is known.
    """
    by_draw: dict[tuple[Draw, bool], list[str]] = {}
    for name, release in releases.items():
        draw = _draw(name, release, masked)
        by_draw.setdefault(draw, []).append(name)
    return [Scene(draw, opposed, tuple(names)) for (draw, opposed), names in by_draw.items()]


def _draw(name: str, release: Release, masked: bool) -> tuple[Draw, bool]:
    sampling = release.sampling
    if isinstance(sampling, FullPasses):
        return Draw.KNOWN, False
    if not isinstance(sampling, Poisson | WithoutReplacement) or _drawn_by_device(release):
        return Draw.CHOSEN, False
    if release.unit is Unit.EXAMPLE:
        return Draw.KNOWN, False
    if name == Against.CLIENT and masked:
        return Draw.SHOWN, False
    if isinstance(sampling, WithoutReplacement):
        return Draw.BESIDE_COLLUDING if name == Against.CLIENT else Draw.FIXED, True
    return Draw.POISSON, False


def _drawn_by_device(release: Release) -> bool:
    """Return whether the device itself samples among its examples."""
    return isinstance(release.sampling, Poisson) and release.sampling.drawn_by is DrawnBy.DEVICE


def _scored(
    run: AuditRun, scene: Scene, name: str, trials: Sequence[Trial], release: Release
) -> scores.Array:
    clients = run.config.clients
    if scene.draw is Draw.POISSON:
        return scores.poisson_draw(trials, name, clients.per_round / clients.total)
    if scene.draw in (Draw.FIXED, Draw.BESIDE_COLLUDING):
        beside = CohortSizes(run.config).colluding_clients(clients.per_round)
        always = beside if scene.draw is Draw.BESIDE_COLLUDING else 0
        size, drawn_from = clients.per_round - always, clients.total - always
        return scores.fixed_draw(trials, name, size=size, clients=drawn_from, opposed=scene.opposed)
    rate = 1.0
    if _drawn_by_device(release):
        assert isinstance(release.sampling, Poisson)
        rate = release.sampling.rate
    return scores.known_draw(trials, name, rate, release.times)


def _releases(strategy: Strategy[Any]) -> dict[str, Release]:
    """Return the releases of the last round, which is a smoothing round if there are any, for the adversaries that are
    simulated."""
    cohort, last = strategy.config.clients.per_round, strategy.config.rounds
    shown = strategy.releases(last, cohort, strategy.sizes.survivors(cohort))
    return {str(name): release for name, release in shown.items() if name in list(Against)}


def _claims(strategy: Strategy[Any]) -> dict[str, float | None]:
    """Return what the run's own accounts say after all rounds, each with as few arrivals as it tolerates."""
    accounts, cohort = Accounts(strategy), strategy.config.clients.per_round
    for current in range(1, strategy.config.rounds + 1):
        accounts.charge_attempt(current, cohort)
        accounts.charge_applied(current, cohort)
    return accounts.epsilon()


@contextmanager
def _processes(workers: int) -> Iterator[Executor | None]:
    """Yield new processes, which share nothing with this one but environment variables."""
    if workers == 1:
        yield None
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield pool


def _simulate(
    run: AuditRun,
    scene: Scene,
    kind: type[SceneSimulator],
    trials: int,
    workers: int,
    pool: Executor | None,
) -> list[Trial]:
    """Simulate as many trials as are needed for this many scores."""
    if pool is None:
        return _simulated(run, scene, kind, trials)
    each = math.ceil(trials / workers)
    work = zip(*[(run, scene, kind, each)] * workers, strict=True)
    return [trial for part in pool.map(_simulated, *work) for trial in part]


def _simulated(run: AuditRun, scene: Scene, kind: type[SceneSimulator], trials: int) -> list[Trial]:
    """Simulate trials. The audit draws the coins; everything else is as random as in the run."""
    simulator, coin = kind(run, scene), np.random.default_rng()
    count = len(simulator.canaries)
    return [simulator.simulate(coin.random(count) < 0.5) for _ in range(math.ceil(trials / count))]
