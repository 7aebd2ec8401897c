"""What a configuration will do, before anything is trained: noise, epsilon per adversary, bytes, ring, signal-to-noise."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fedsketch.conf import Config
from fedsketch.conf.data.folder import FolderConfig
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.server.accounts import Accounts
from fedsketch.server.expected_traffic import expected_traffic
from fedsketch.server.guarantee import adversaries, guarantee, not_private
from fedsketch.server.report.plots import COLORS, Axis, Level, Line, line_chart
from fedsketch.server.report.readable import in_order, plain
from fedsketch.server.run_folder import RunFolder
from fedsketch.strategies import make_strategy
from fedsketch.strategies.shared.base import FederatedStrategy
from fedsketch.strategies.shared.cohort import Cohorts
from fedsketch.strategies.shared.device_noise import DeviceNoise
from fedsketch.strategies.shared.messages import Aggregate
from fedsketch.tasks.job import Job

POINTS = 50  # of the curve of epsilon


@dataclass(frozen=True)
class Plan:
    """Worst cases: every round loses as many clients as it tolerates. Bytes are per client and round, with nobody lost. `ends_after` is the
    last round that the budget pays for, where it does not pay for all."""

    guarantee: str
    not_private: str | None
    rounds: int
    ends_after: int | None
    parameters: int  # that are trained
    frozen: int  # that are not
    frozen_bytes: int  # of them, which a device is sent once in the run
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
    job.histogram()  # raises if the data cannot be spread over the clients
    # Devices' own data are tested on by a set that only the server may have.
    if not isinstance(config.data, FolderConfig):
        job.try_out(model)
    strategy = make_strategy(config, job, model, Cohorts(config.clients, 0))
    cohort, noise = config.clients.per_round, strategy.noise
    mechanism = strategy.mechanism(config.rounds, cohort)
    up, down = expected_traffic(config, strategy.planned_broadcast(), mechanism, noise.dim, cohort)
    expected = Aggregate(
        torch.empty(0), cohort, mechanism.noise_std(noise.variance(cohort, cohort))
    )
    clip = strategy.clipping.facts(expected.noise_std, strategy.units(expected))
    accounts = Accounts(strategy)
    accounts.refuse_an_idle_run()
    curve = _epsilon_curve(accounts, strategy)
    epsilon = {name: values[-1] for name, values in curve.items() if name != "round"}
    return Plan(
        guarantee=guarantee(strategy),
        not_private=not_private(config),
        rounds=config.rounds,
        ends_after=_ends_after(strategy, curve),
        parameters=model.size,
        frozen=model.frozen_size,
        # Without given weights they follow from the seed, and nothing is sent.
        frozen_bytes=sum(tensor.nbytes for tensor in model.frozen.values())
        if config.model.weights is not None
        else 0,
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


def _epsilon_curve(
    accounts: Accounts, strategy: FederatedStrategy
) -> dict[str, list[float | None]]:
    """Epsilon after some of the rounds, the last among them."""
    config = strategy.config
    curve: dict[str, list[float | None]] = {"round": [], **{a: [] for a in accounts.epsilon()}}
    step = math.ceil(config.rounds / POINTS)
    for start in range(0, config.rounds, step):
        end = min(start + step, config.rounds)
        _charge(accounts, strategy, start + 1, end)
        curve["round"].append(end)
        for name, value in accounts.epsilon().items():
            curve[name].append(value)
    return curve


def _ends_after(strategy: FederatedStrategy, curve: dict[str, list[float | None]]) -> int | None:
    """The round after which the run stops, because the budget does not pay for the next; None if it pays for all.

    What was spent never shrinks, so the rounds that can be afforded are the first ones: their last is found by bisection, between the last
    point of the curve within the budget and the end.
    """
    budget, rounds = strategy.config.privacy.epsilon, strategy.config.rounds
    if budget is None or _affordable(strategy, rounds):
        return None
    spent = zip(curve["round"], curve[strategy.bound], strict=True)
    within = [int(end) for end, value in spent if end and value is not None and value <= budget]
    paid, too_many = max((end for end in within if end < rounds), default=1), rounds
    while too_many - paid > 1:
        middle = (paid + too_many) // 2
        if _affordable(strategy, middle):
            paid = middle
        else:
            too_many = middle
    return paid


def _affordable(strategy: FederatedStrategy, server_round: int) -> bool:
    """Whether the budget pays for this round after all before it."""
    accounts = Accounts(strategy)
    _charge(accounts, strategy, 1, server_round - 1)
    return accounts.affordable(server_round)


def _charge(accounts: Accounts, strategy: FederatedStrategy, start: int, end: int) -> None:
    """These rounds, whole."""
    if start <= end:
        for first, last in _alike(strategy, start, end):
            accounts.charge_whole(first, last, strategy.config.clients.per_round)


def _alike(strategy: FederatedStrategy, start: int, end: int) -> Iterator[tuple[int, int]]:
    """These rounds, cut into stretches whose rounds show the same."""
    shown = _shown_by(strategy)
    first, before = start, shown(start)
    for current in range(start + 1, end + 1):
        now = shown(current)
        if now != before:
            yield first, current - 1
            first, before = current, now
    yield first, end


def _shown_by(strategy: FederatedStrategy) -> Callable[[int], object]:
    """What two rounds that show the same have in common. Ours say by their noise, or by the parts of the sum that they want, that rounds
    differ. Of a strategy of an installed package that states its releases itself these are compared, which takes longer."""
    cohort = strategy.config.clients.per_round
    own = type(strategy).releases is not FederatedStrategy.releases
    if own and "strategy" in strategy.config.plugins:
        return lambda current: strategy.releases(current, cohort, cohort)
    return lambda current: (strategy.noise_of(current), strategy.wants_parts(current))


def _best_snr(mechanism: Mechanism, noise: DeviceNoise, cohort: int) -> float | None:
    """If all clients of a cohort agreed on one direction at full clip: the norm of the sum over the norm of its noise."""
    noise_std = mechanism.noise_std(noise.variance(cohort, cohort))
    if noise_std == 0 or mechanism.reach is None:
        return None
    return cohort * mechanism.reach / (noise_std * math.sqrt(noise.dim))
