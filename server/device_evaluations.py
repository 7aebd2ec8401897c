"""Evaluations on devices, for the round loop: when one is due, what it costs, and what it adds to a row of metrics."""

import logging
import math
from typing import Any

from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig
from fedsketch.conf.metric_names import ON_DEVICES
from fedsketch.errors import ConfigError
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.server.accounts import Accounts
from fedsketch.server.expected_traffic import expected_traffic
from fedsketch.strategies.rounds.base import FederatedStrategy
from fedsketch.strategies.rounds.evaluation import FederatedEvaluation, Mean, cohorts_of

log = logging.getLogger(__name__)


class DeviceEvaluations:
    """The evaluations of one run. They have their own accounts, so that their budget and that of training stay
    separate."""

    def __init__(self, trained: FederatedStrategy) -> None:
        self._trained = trained
        self.strategy = FederatedEvaluation(trained, trained.cohorts.key)
        self.accounts = Accounts(self.strategy)
        if trained.bound not in self.accounts.epsilon():
            raise ConfigError(
                f"No theorem covers what evaluations on devices reveal to the {trained.bound}, against whom the "
                "budget is: set evaluation=server."
            )

    @classmethod
    def of(cls, trained: FederatedStrategy) -> "DeviceEvaluations | None":
        """The evaluations of a run that trains by this strategy; None if it has none."""
        federated = isinstance(trained.config.evaluation, FederatedEvaluationConfig)
        return cls(trained) if federated else None

    def begin(self) -> None:
        """Start, once the clients are known and a resumed run has the key of its cohorts."""
        self.strategy.know_the_nodes_of(self._trained)
        self.strategy.cohorts = cohorts_of(self.strategy.config, self._trained.cohorts.key)

    def may_follow(self, server_round: int) -> bool:
        """Whether an evaluation is planned after this round. There is always one after the last round too."""
        settings, last = self.strategy.settings, self._trained.config.rounds
        return settings.due(server_round) or server_round == last

    def due(self, server_round: int, *, last: bool) -> bool:
        """Whether an evaluation follows this round: it is planned, and the budget of evaluations pays for it."""
        planned = self.strategy.settings.due(server_round) or last
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
        """The accounts after round `last`, if all evaluations that are planned after `done` take place."""
        accounts = self.accounts.copy()
        self._charge(accounts, done + 1, last)
        return accounts

    def _charge(self, accounts: Accounts, first: int, last: int) -> None:
        settings, rounds = self.strategy.settings, self._trained.config.rounds
        count = (
            0 if settings.every is None else last // settings.every - (first - 1) // settings.every
        )
        if last == rounds and not settings.due(rounds):
            count += 1
        if count:
            accounts.charge_planned(1, count)

    def sentence(self) -> str:
        """What the guarantee of a run says about evaluations."""
        privacy, settings = self._trained.config.privacy, self.strategy.settings
        times = self.strategy.config.rounds
        what = "once, after training," if times == 1 else f"{times} times"
        sentence = (
            f" Devices evaluate {what} on examples that are held out of training: noise multiplier "
            f"{self.strategy.noise_multiplier:.4g} for a budget of their own, epsilon {settings.epsilon:g}."
        )
        if privacy.epsilon is not None and privacy.noise_multiplier is not None:
            return sentence  # the number of rounds is not known
        training, evaluations = Accounts(self._trained), Accounts(self.strategy)
        training.charge_planned(1, self._trained.config.rounds)
        evaluations.charge_planned(1, times)
        total = training.epsilon_against(self._trained.bound, evaluations)
        both = "have no guarantee" if total is None else f"cost epsilon {total:.4g}"
        return f"{sentence} Training and evaluations together {both}."

    def planned(self) -> dict[str, Any]:
        """What a plan says about evaluations if nobody drops out; bytes are per client and evaluation."""
        strategy, config = self.strategy, self.strategy.config
        cohort, groups, noise = config.clients.per_round, strategy.settings.groups, strategy.noise
        mechanism, members = strategy.mechanism(1, cohort), noise.sizes.members(cohort)
        broadcast = strategy.planned_broadcast()
        up, down = expected_traffic(config, broadcast, mechanism, noise.dim, cohort)
        of_group = mechanism.noise_std(noise.variance(cohort, members))
        units = members * (self._held_out() if noise.unit is Unit.EXAMPLE else 1.0)
        return {
            "times": config.rounds,
            "clients": cohort,
            "groups": groups,
            "metrics": list(strategy.names),
            "epsilon": strategy.settings.epsilon,
            "noise_multiplier": strategy.noise_multiplier,
            "noise_of_a_mean": of_group / (units * math.sqrt(groups)),
            "noise_of_a_group": of_group / units,
            "uplink_bytes": up,
            "downlink_bytes": down,
        }

    def _held_out(self) -> float:
        """Held-out examples of a client: the mean, or the largest number if the mean is not known."""
        job, share = self.strategy.job, self.strategy.settings.held_out
        return job.examples / self._trained.config.clients.total * share / (1 - share)

    def row(self) -> dict[str, Any]:
        """The results of the last evaluation; empty values if there was none."""
        means = self.strategy.means
        flat = {
            ON_DEVICES + name: means[name].mean if name in means else None
            for name in self.strategy.names
        }
        return {**flat, "evaluation": self._details(means) if means else None}

    def _details(self, means: dict[str, Mean]) -> dict[str, Any]:
        return {
            "clients": self.strategy.arrived,
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
