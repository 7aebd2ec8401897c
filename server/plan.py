"""What a configuration will do, before anything is trained: noise, epsilon per adversary, bytes, ring, signal-to-noise."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fedsketch.conf import Config
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.server.accounts import Accounts
from fedsketch.server.expected_traffic import expected_traffic
from fedsketch.server.guarantee import adversaries, guarantee, not_private
from fedsketch.server.report.plots import COLORS, Axis, Level, Line, line_chart
from fedsketch.server.report.readable import in_order, plain
from fedsketch.server.run_folder import RunFolder
from fedsketch.strategies import make_strategy
from fedsketch.strategies.shared.cohort import Cohorts
from fedsketch.strategies.shared.device_noise import DeviceNoise
from fedsketch.strategies.shared.messages import Aggregate
from fedsketch.tasks.job import Job

POINTS = 50  # of the curve of epsilon


@dataclass(frozen=True)
class Plan:
    """Worst cases: every round loses as many clients as it tolerates. Bytes are per client and round, with nobody lost."""

    guarantee: str
    not_private: str | None
    rounds: int
    parameters: int
    upload_size: int
    noise_multiplier: float
    epsilon: dict[str, float | None]
    adversaries: dict[str, str]  # in words
    budget: float | None
    budget_against: str
    delta: float
    uplink_bytes: float
    downlink_bytes: float
    mechanism: Mapping[str, object]
    mechanism_facts: Mapping[str, str]
    best_snr: float | None
    epsilon_over_rounds: dict[str, list[float | None]]

    def save(self, folder: Path) -> Path:
        """Write the plan and the plot of epsilon into a run's folder; returns the plot's path."""
        run = RunFolder(folder)
        run.write_plan(asdict(self), self._figure())
        return run.plan_figure

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
        levels = [Level(f"budget ({self.budget_against})", self.budget)] if self.budget else []
        return line_chart("plan", alt, lines, Axis("epsilon", plain), levels=levels)


def make_plan(config: Config) -> Plan:
    """Plan a run. Raises what the run itself would raise: impossible budgets, rings too small, data not there."""
    job = Job(config)
    model = job.model()
    strategy = make_strategy(config, job, model, Cohorts(config.clients, 0))
    cohort, noise = config.clients.per_round, strategy.noise
    mechanism = strategy.mechanism(config.rounds, cohort)
    up, down = expected_traffic(config, strategy.planned_broadcast(), mechanism, noise.dim, cohort)
    expected = Aggregate(
        torch.empty(0), cohort, mechanism.noise_std(noise.variance(cohort, cohort))
    )
    clip = strategy.clipping.facts(expected.noise_std, strategy.units(expected))
    curve = _epsilon_curve(Accounts(strategy), config)
    epsilon = {name: values[-1] for name, values in curve.items() if name != "round"}
    return Plan(
        guarantee=guarantee(strategy),
        not_private=not_private(config),
        rounds=config.rounds,
        parameters=model.size,
        upload_size=mechanism.sent(noise.dim),
        noise_multiplier=strategy.noise_multiplier,
        epsilon=epsilon,
        adversaries=adversaries(strategy, epsilon),
        budget=config.privacy.epsilon,
        budget_against=strategy.bound,
        delta=config.privacy.delta,
        uplink_bytes=up,
        downlink_bytes=down,
        mechanism=mechanism.to_record(),
        mechanism_facts={**clip, **mechanism.facts()},
        best_snr=_best_snr(mechanism, noise, cohort),
        epsilon_over_rounds=curve,
    )


def _epsilon_curve(accounts: Accounts, config: Config) -> dict[str, list[float | None]]:
    """Epsilon after some of the rounds, the last among them."""
    curve: dict[str, list[float | None]] = {"round": [], **{a: [] for a in accounts.epsilon()}}
    step = math.ceil(config.rounds / POINTS)
    for current in range(1, config.rounds + 1):
        accounts.charge_attempt(current, config.clients.per_round)
        accounts.charge_applied(current, config.clients.per_round)
        if current % step == 0 or current == config.rounds:
            curve["round"].append(current)
            for name, value in accounts.epsilon().items():
                curve[name].append(value)
    return curve


def _best_snr(mechanism: Mechanism, noise: DeviceNoise, cohort: int) -> float | None:
    """If all clients of a cohort agreed on one direction at full clip: the norm of the sum over the norm of its noise."""
    noise_std = mechanism.noise_std(noise.variance(cohort, cohort))
    if noise_std == 0 or mechanism.reach is None:
        return None
    return cohort * mechanism.reach / (noise_std * math.sqrt(noise.dim))
