"""Evaluations on devices, for the round loop: when one is due, what it costs, and what it adds to a row of metrics."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig
from fedsketch.conf.metric_names import ON_DEVICES
from fedsketch.errors import ConfigError, TooFewClients
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.secagg import WrappedGrid
from fedsketch.server.accounts import Accounts
from fedsketch.server.exchange import Exchange
from fedsketch.server.expected_traffic import expected_traffic
from fedsketch.server.grids.losses import LossTeller
from fedsketch.server.grids.named_settings import planned_broadcast
from fedsketch.server.run_folder import Attempt, RunFolder
from fedsketch.strategies.rounds.coordinator import Coordinator
from fedsketch.strategies.rounds.evaluation import FederatedEvaluation, Mean, sampler_of

log = logging.getLogger(__name__)


class NoEvaluations:
    """What a run has whose devices do not evaluate."""

    accounts: Accounts | None = None
    cohort_size = 0

    def begin(
        self, trained: Coordinator, grid: WrappedGrid, folder: RunFolder, teller: LossTeller
    ) -> None: ...

    def evaluate(self, server_round: int, *, last: bool) -> dict[str, Any]:
        return {}

    def row(self) -> dict[str, Any]:
        return {}

    def may_follow(self, server_round: int) -> bool:
        return False

    def sentence(self) -> str:
        return ""

    def planned(self) -> dict[str, Any] | None:
        return None

    def to_json(self) -> str:
        return ""

    def load_json(self, text: str) -> None: ...

    def charge_lost(self, attempts: Sequence[Attempt]) -> None: ...

    def charge_planned(self, first: int, last: int) -> None: ...

    def as_planned(self, done: int, last: int) -> Accounts | None:
        return None


class DeviceEvaluations:
    """The evaluations of one run. They have their own accounts, so that their budget and that of training stay
    separate."""

    def __init__(self, trained: Coordinator) -> None:
        self._trained = trained.strategy
        self.strategy = FederatedEvaluation(trained.strategy)
        self.coordinator = Coordinator(
            self.strategy, sampler_of(self.strategy.config, trained.sampler.key)
        )
        self.accounts = Accounts(self.strategy)
        against = self._trained.budget_adversary
        if against not in self.accounts.epsilon():
            raise ConfigError(
                f"No theorem covers what evaluations on devices reveal to the {against}, against whom the "
                "budget is: set evaluation=server."
            )

    def begin(
        self, trained: Coordinator, grid: WrappedGrid, folder: RunFolder, teller: LossTeller
    ) -> None:
        """Start, once the clients are known and a resumed run has the key of its cohorts."""
        self.coordinator.nodes = trained.nodes
        self.coordinator.sampler = sampler_of(self.strategy.config, trained.sampler.key)
        self._exchange = Exchange(grid, folder, self.coordinator, self.accounts, teller)

    @property
    def cohort_size(self) -> int:
        """How many clients the last evaluation asked."""
        return self.coordinator.cohort_size

    def evaluate(self, server_round: int, *, last: bool) -> dict[str, Any]:
        """Evaluate this round's model on devices, if it is due, and return the results. If the evaluation fails, its
        values are empty and the run continues."""
        self.strategy.means = {}
        if self.due(server_round, last=last):
            try:
                self._exchange.run(server_round, None, evaluation=True)
            except (TooFewClients, ConfigError) as failed:
                log.warning("No evaluation on devices after round %d: %s", server_round, failed)
        return self.row()

    # ------------------------------------------------------------------ accounts
    def to_json(self) -> str:
        return self.accounts.to_json()

    def load_json(self, text: str) -> None:
        self.accounts.load_json(text)

    def charge_lost(self, attempts: Sequence[Attempt]) -> None:
        """Charge attempts that were made after a checkpoint and before a kill."""
        self.accounts.charge_lost_evaluations(attempts)

    def may_follow(self, server_round: int) -> bool:
        """Return whether an evaluation is planned after this round. There is always one after the last round too."""
        settings, last = self.strategy.evaluation, self._trained.config.rounds
        return settings.due(server_round) or server_round == last

    def due(self, server_round: int, *, last: bool) -> bool:
        """Return whether an evaluation follows this round: it is planned, and the budget of evaluations pays for it."""
        planned = self.strategy.evaluation.due(server_round) or last
        if planned and not self.accounts.affordable(server_round):
            log.warning(
                "No evaluation on devices after round %d: earlier attempts have spent evaluation.epsilon.",
                server_round,
            )
            return False
        return planned

    def charge_planned(self, first: int, last: int) -> None:
        """Charge the evaluations that are planned after these rounds."""
        self._charge(self.accounts, first, last)

    def as_planned(self, done: int, last: int) -> Accounts:
        """Return the accounts after round `last`, if all evaluations that are planned after `done` take place."""
        accounts = self.accounts.copy()
        self._charge(accounts, done + 1, last)
        return accounts

    def _charge(self, accounts: Accounts, first: int, last: int) -> None:
        settings, rounds = self.strategy.evaluation, self._trained.config.rounds
        count = (
            0 if settings.every is None else last // settings.every - (first - 1) // settings.every
        )
        if last == rounds and not settings.due(rounds):
            count += 1
        if count:
            accounts.charge_planned(1, count)

    def sentence(self) -> str:
        """Return what the guarantee of a run says about evaluations."""
        privacy, settings = self._trained.config.privacy, self.strategy.evaluation
        times = self.strategy.config.rounds
        what = "once, after training," if times == 1 else f"{times} times"
        sentence = (
            f" Devices evaluate {what} on examples that are held out of training: noise multiplier "
            f"{self.strategy.noise.noise_multiplier:.4g} for a budget of their own, epsilon {settings.epsilon:g}."
        )
        if privacy.epsilon is not None and privacy.noise_multiplier is not None:
            return sentence  # the number of rounds is not known
        training, evaluations = Accounts(self._trained), Accounts(self.strategy)
        training.charge_planned(1, self._trained.config.rounds)
        evaluations.charge_planned(1, times)
        total = training.epsilon_against(self._trained.budget_adversary, evaluations)
        both = "have no guarantee" if total is None else f"cost epsilon {total:.4g}"
        return f"{sentence} Training and evaluations together {both}."

    def planned(self) -> dict[str, Any]:
        """Return what a plan says about evaluations if nobody drops out; bytes are per client and evaluation."""
        strategy, config = self.strategy, self.strategy.config
        cohort, groups, noise = config.clients.per_round, strategy.evaluation.groups, strategy.noise
        mechanism, members = strategy.mechanism(1, cohort), noise.sizes.members(cohort)
        broadcast = planned_broadcast(self.coordinator)
        up, down = expected_traffic(config, broadcast, mechanism, noise.dim, cohort)
        of_group = mechanism.noise_std(noise.variance(cohort, members))
        units = members * (self._held_out() if noise.unit is Unit.EXAMPLE else 1.0)
        return {
            "times": config.rounds,
            "clients": cohort,
            "groups": groups,
            "metrics": list(strategy.names),
            "epsilon": strategy.evaluation.epsilon,
            "noise_multiplier": strategy.noise.noise_multiplier,
            "noise_of_a_mean": of_group / (units * math.sqrt(groups)),
            "noise_of_a_group": of_group / units,
            "uplink_bytes": up,
            "downlink_bytes": down,
        }

    def _held_out(self) -> float:
        """Return held-out examples of a client: the mean, or the largest number if the mean is not known."""
        workload, fraction = self.strategy.workload, self.strategy.evaluation.held_out
        return workload.examples / self._trained.config.clients.total * fraction / (1 - fraction)

    def row(self) -> dict[str, Any]:
        """Return the results of the last evaluation; empty values if there was none."""
        means = self.strategy.means
        flat = {
            ON_DEVICES + name: means[name].mean if name in means else None
            for name in self.strategy.names
        }
        return {**flat, "evaluation": self._details(means) if means else None}

    def _details(self, means: dict[str, Mean]) -> dict[str, Any]:
        return {
            "clients": self.coordinator.arrived,
            "metrics": {
                name: {
                    "mean": mean.mean,
                    "noise": mean.noise,
                    "groups": [value for value, _ in mean.groups],
                    "noise_of_groups": [noise for _, noise in mean.groups],
                }
                for name, mean in means.items()
            },
        }


Evaluations = DeviceEvaluations | NoEvaluations


def evaluations_of(trained: Coordinator) -> Evaluations:
    """Return the evaluations of a run that trains so."""
    federated = isinstance(trained.config.evaluation, FederatedEvaluationConfig)
    return DeviceEvaluations(trained) if federated else NoEvaluations()
