"""What a run will do, before anything is trained: noise, epsilon per adversary, bytes, ring, signal-to-noise ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedsketch.conf import Config
from fedsketch.conf.data.folder import FolderConfig
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.server.accounts import Accounts
from fedsketch.server.device_evaluations import Evaluations, evaluations_of
from fedsketch.server.expected_traffic import expected_traffic
from fedsketch.server.grids.named_settings import planned_broadcast
from fedsketch.server.guarantee import adversaries, guarantee, not_private
from fedsketch.server.report.number_format import in_order, plain, size
from fedsketch.server.report.plots import COLORS, Axis, Level, Line, line_chart
from fedsketch.server.run_folder import RunFolder
from fedsketch.server.sums import kinds_of, sums_planned
from fedsketch.strategies.algorithm import Aggregate, Strategy
from fedsketch.strategies.registry import make_strategy
from fedsketch.strategies.rounds.coordinator import Coordinator
from fedsketch.strategies.rounds.sampling import CohortSampler
from fedsketch.tasks.data.tabular import resolved
from fedsketch.tasks.workload import Workload

POINTS = 50  # points of the epsilon curve


@dataclass(frozen=True)
class Plan:
    """Worst cases: every round loses as many clients as it tolerates. Bytes are per client and round, without dropouts
    and without the configuration, which each device receives once.
    `ends_after` is the last round that the budget pays for, if it does not pay for all."""

    guarantee: str
    not_private: str | None
    rounds: int
    ends_after: int | None
    parameters: int  # trained parameters
    frozen: int  # parameters that are not trained
    frozen_bytes: int  # bytes of frozen parameters, which each device receives once
    upload_size: int
    noise_multiplier: float
    epsilon: dict[str, float | None]
    adversaries: dict[str, str]  # descriptions in words
    budget: float | None
    budget_against: str
    delta: float
    uplink_bytes: float
    downlink_bytes: float
    mechanism: Mapping[str, object]
    mechanism_facts: Mapping[str, str]
    best_snr: float | None
    epsilon_over_rounds: dict[str, list[float | None]]
    # If devices evaluate, all epsilons above are of training and evaluations together.
    epsilon_of_training: float | None  # against the adversary of the budget
    evaluations: Mapping[str, Any] | None
    # For each kind of round its protocol, and what each protocol costs a client, beside the broadcast.
    sums: Mapping[str, Mapping[str, Any]]

    def save(self, folder: Path) -> Path:
        """Write the plan and the plot of epsilon into a run's folder; returns the plot's path."""
        run = RunFolder(folder)
        run.write_plan(asdict(self), self._figure())
        return run.plan_figure

    def evaluation_facts(self) -> dict[str, str]:
        """Return what the plan says about evaluations on devices, if there are any."""
        facts = self.evaluations
        if facts is None:
            return {}
        groups = "" if facts["groups"] == 1 else f" in {facts['groups']} groups"
        noise = f"standard deviation {facts['noise_of_a_mean']:.3g}"
        if facts["groups"] > 1:
            noise += f", in that of a group {facts['noise_of_a_group']:.3g}"
        return {
            "evaluations on devices": f"{facts['times']}, each by {facts['clients']} clients{groups}",
            "noise in a mean of theirs": noise,
            "bytes of one, per client": f"{size(facts['uplink_bytes'])} up, {size(facts['downlink_bytes'])} down",
        }

    def _figure(self) -> str:
        lines = []
        for name, color in zip(in_order(self.epsilon), COLORS, strict=False):
            points = zip(
                self.epsilon_over_rounds["round"], self.epsilon_over_rounds[name], strict=True
            )
            known = [(x, y) for x, y in points if x is not None and y is not None]
            if known:
                lines.append(Line(name, [x for x, _ in known], [y for _, y in known], color))
        alt = f"Epsilon over {self.rounds} rounds, per adversary."
        levels = []
        if self.budget:
            beside = (self.evaluations or {}).get("epsilon") or 0.0
            levels.append(Level(f"budget ({self.budget_against})", self.budget + beside))
        return line_chart("plan", alt, lines, Axis("epsilon", plain), levels=levels)


def make_plan(config: Config) -> Plan:
    """Plan a run. Raises what the run itself would raise: impossible budgets, rings that are too small, missing
    data."""
    config = resolved(config)
    workload = Workload(config, only_to_plan=True)
    model = workload.model()
    workload.histogram()  # raises if the data cannot be divided among the clients
    # If devices have their own data, only the server may have the test set.
    if not isinstance(config.data, FolderConfig):
        workload.try_out(model)
    strategy = make_strategy(config, workload, model)
    coordinator = Coordinator(strategy, CohortSampler(config.clients, 0))
    cohort, noise = config.clients.per_round, strategy.noise
    mechanism = strategy.mechanism(config.rounds, cohort)
    up, down = expected_traffic(
        config, planned_broadcast(coordinator), mechanism, noise.dim, cohort
    )
    expected = Aggregate(
        torch.empty(0), cohort, mechanism.noise_std(noise.variance(cohort, cohort))
    )
    clip = strategy.clipping.facts(expected.noise_std, strategy.units(expected))
    accounts = Accounts(strategy)
    accounts.refuse_a_run_without_rounds()
    evaluations = evaluations_of(coordinator)
    last, _ = accounts.as_planned(0)
    curve = _epsilon_curve(accounts, strategy, evaluations)
    epsilon = {name: values[-1] for name, values in curve.items() if name != "round"}
    return Plan(
        guarantee=guarantee(strategy, evaluations),
        not_private=not_private(config),
        rounds=config.rounds,
        ends_after=last if last < config.rounds else None,
        parameters=model.size,
        frozen=model.frozen_size,
        # Without given weights, frozen parameters follow from the seed, and nothing is sent.
        frozen_bytes=sum(tensor.nbytes for tensor in model.frozen.values())
        if config.model.weights is not None
        else 0,
        upload_size=mechanism.sent(noise.dim),
        noise_multiplier=strategy.noise.noise_multiplier,
        epsilon=epsilon,
        adversaries=adversaries(strategy, epsilon),
        budget=config.privacy.epsilon,
        budget_against=strategy.budget_adversary,
        delta=config.privacy.delta,
        uplink_bytes=up,
        downlink_bytes=down,
        mechanism=mechanism.to_record(),
        mechanism_facts={**clip, **mechanism.facts()},
        best_snr=_best_snr(strategy, mechanism, cohort),
        epsilon_over_rounds=curve,
        epsilon_of_training=accounts.epsilon_against(strategy.budget_adversary),
        evaluations=evaluations.planned(),
        sums=sums_planned(kinds_of(strategy, evaluations)),
    )


def _epsilon_curve(
    accounts: Accounts, strategy: Strategy[Any], evaluations: Evaluations
) -> dict[str, list[float | None]]:
    """Return epsilon after some of the rounds, including the last one, and including evaluations on devices up to
    then."""
    config = strategy.config
    curve: dict[str, list[float | None]] = {"round": [], **{a: [] for a in accounts.epsilon()}}
    step = math.ceil(config.rounds / POINTS)
    for start in range(0, config.rounds, step):
        end = min(start + step, config.rounds)
        accounts.charge_planned(start + 1, end)
        evaluations.charge_planned(start + 1, end)
        curve["round"].append(end)
        for name, value in accounts.epsilon(evaluations.accounts).items():
            curve[name].append(value)
    return curve


def _best_snr(strategy: Strategy[Any], mechanism: Mechanism, cohort: int) -> float | None:
    """Return the signal-to-noise ratio if all rows were equal and as long as the clip: norm of the sum over norm of its
    noise. With examples as units a device adds up one row for each of its examples."""
    noise, rows = strategy.noise, 1.0
    if strategy.config.privacy.unit is Unit.EXAMPLE and mechanism.takes_rows:
        rows = strategy.workload.examples / strategy.config.clients.total
    noise_std = mechanism.noise_std(noise.variance(cohort, cohort))
    if noise_std == 0 or mechanism.reach is None:
        return None
    return cohort * rows * mechanism.reach / (noise_std * math.sqrt(noise.dim))
