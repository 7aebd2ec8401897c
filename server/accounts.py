"""What a run has spent against each adversary; refuses to spend more than the budget."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from fedsketch.conf.schema import Against
from fedsketch.errors import ConfigError, UnsupportedReleaseError
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import Release
from fedsketch.server.run_folder import Attempt
from fedsketch.strategies.algorithm import Strategy

log = logging.getLogger(__name__)
_WAITING = (Against.MODEL, Against.CLIENT)  # those who see nothing of a round before it is applied


class Accounts:
    """One accountant for each adversary in the strategy's releases. Those who see models, fellow clients among them,
    are charged for rounds that were applied; all others are charged for every attempt."""

    def __init__(self, strategy: Strategy[Any]) -> None:
        self._strategy = strategy
        self._privacy = strategy.config.privacy
        cohort = strategy.config.clients.per_round
        names = strategy.releases(1, cohort, strategy.sizes.survivors(cohort))
        self._accountants: dict[str, Accountant | None] = {
            str(name): Accountant(self._privacy.delta) for name in names
        }

    def affordable(self, server_round: int) -> bool:
        """Return whether the budget pays for this round, whatever the size of its cohort, and with as many dropouts as
        it tolerates."""
        if self._privacy.epsilon is None:
            return True
        spent = self._accountants[self._strategy.budget_adversary]
        try:
            worst = self._strategy.worst(server_round)
            return spent is not None and not spent.would_exceed(worst, self._privacy.epsilon)
        except UnsupportedReleaseError:
            return False  # no theorem covers another round

    def refuse_a_run_without_rounds(self) -> None:
        """Raise ConfigError, before anything is spent, if the given noise is too small for even one round within the
        budget."""
        if not self.affordable(1):
            raise ConfigError(
                f"Not one round with a noise multiplier of {self._strategy.noise.noise_multiplier:g} fits into "
                f"privacy.epsilon={self._privacy.epsilon:g} against {self._strategy.budget_adversary}: raise "
                "privacy.epsilon or privacy.noise_multiplier."
            )

    def charge_planned(self, first: int, last: int) -> None:
        """Charge these rounds as planned, with cohorts of the usual size."""
        for start, end in _equal_rounds(self._strategy, first, last) if first <= last else ():
            self.charge_whole(start, end, self._strategy.config.clients.per_round)

    def as_planned(self, done: int) -> tuple[int, Accounts]:
        """Return the last round that the budget pays for, if all rounds after `done` go as planned, and the accounts
        after it.

        What was spent never decreases, so the rounds that can be afforded are the first ones, and bisection finds the
        last.
        """
        rounds = self._strategy.config.rounds
        accounts, paid, too_many, middle = self.copy(), done, rounds + 1, rounds
        while too_many - paid > 1:
            tried = accounts.copy()
            tried.charge_planned(paid + 1, middle - 1)
            if tried.affordable(middle):
                tried.charge_planned(middle, middle)
                accounts, paid = tried, middle
            else:
                too_many = middle
            middle = (paid + too_many) // 2
        return paid, accounts

    def copy(self) -> Accounts:
        """Return a copy of these accounts that is charged independently."""
        other = Accounts(self._strategy)
        other.load_json(self.to_json())
        return other

    def charge_whole(self, first: int, last: int, cohort: int) -> None:
        """Charge rounds that release the same, each attempted once and applied, with as many dropouts as they
        tolerate."""
        for name, seen in self._seen(first, cohort, None).items():
            self._record(name, seen, last - first + 1)

    def charge_attempt(self, server_round: int, cohort: int, clients: int | None = None) -> None:
        """Charge an attempt: a cohort of this size was asked and `clients` answered (if unknown, the fewest that are
        allowed)."""
        for name, seen in self._seen(server_round, cohort, clients).items():
            if name not in _WAITING:
                self._record(name, seen)

    def charge_applied(
        self,
        server_round: int,
        cohort: int,
        clients: int | None = None,
        *,
        known_cohort: bool = False,
    ) -> None:
        """Charge a round that was applied and whose model is released. `known_cohort`: the cohort is not secret any
        more."""
        for name, seen in self._seen(server_round, cohort, clients).items():
            if name in _WAITING:
                self._record(name, seen.with_known_cohort() if known_cohort else seen)

    def charge_lost(self, attempts: Sequence[Attempt]) -> None:
        """Charge what was seen after a checkpoint and before a kill. Those rounds will be repeated with other noise.

        The server saw every attempt. If a cohort was asked for a later round, or to evaluate the model of an earlier
        one, then that earlier model was released too.
        """
        for attempt in attempts:
            if not attempt.evaluation:
                self.charge_attempt(attempt.round, attempt.cohort)
        for attempt, following in pairwise(attempts):
            # Neither a retry, nor the first attempt after a restart of the run.
            out = following.evaluation or following.round > attempt.round
            if out and not attempt.evaluation:
                self._charge_repeated_round(attempt)

    def charge_lost_evaluations(self, attempts: Sequence[Attempt]) -> None:
        """Charge lost attempts in the accounts of evaluations. Whatever became of them, every adversary may have seen
        it."""
        for attempt in attempts:
            if attempt.evaluation:
                self.charge_attempt(attempt.round, attempt.cohort)
                self._charge_repeated_round(attempt)

    def epsilon(self, beside: Accounts | None = None) -> dict[str, float | None]:
        """Return what each adversary can have learned so far, including what `beside` has recorded; None means no
        guarantee."""
        return {name: self.epsilon_against(name, beside) for name in self._accountants}

    def epsilon_against(self, name: str, beside: Accounts | None = None) -> float | None:
        """Return what one adversary can have learned so far; None means no guarantee."""
        account = self._accountants[name]
        whole = account if beside is None else beside._added_to(account, name)
        spent = math.inf if whole is None else whole.epsilon().epsilon
        return spent if math.isfinite(spent) else None

    def to_json(self) -> str:
        accounts = self._accountants.items()
        return json.dumps({name: account and account.to_json() for name, account in accounts})

    def load_json(self, text: str) -> None:
        self._accountants = {
            name: state and Accountant.from_json(state) for name, state in json.loads(text).items()
        }

    def _added_to(self, account: Accountant | None, name: str) -> Accountant | None:
        """Return what an adversary has seen in these accounts and in its own. No theorem covers one that these
        accounts do not name."""
        mine = self._accountants.get(name)
        if not any(one is None or one.releases for one in self._accountants.values()):
            return account
        return None if account is None or mine is None else account.together(mine)

    def _charge_repeated_round(self, attempt: Attempt) -> None:
        """Charge those who see only applied rounds; the cohort of this round will be asked again."""
        for name, seen in self._seen(attempt.round, attempt.cohort, None).items():
            if name in _WAITING:
                self._record(name, seen.once_more())

    def _record(self, name: str, seen: Release, count: int = 1) -> None:
        """Charge one adversary. If no theorem covers what it sees, there is no guarantee against it from then on."""
        account = self._accountants[name]
        try:
            if account is not None:
                account.record(seen, count)
        except UnsupportedReleaseError as unsupported:
            log.warning("No guarantee against the %s any more: %s", name, unsupported)
            self._accountants[name] = None

    def _seen(self, server_round: int, cohort: int, clients: int | None) -> dict[str, Release]:
        arrived = self._strategy.sizes.survivors(cohort) if clients is None else clients
        return self._strategy.releases(server_round, cohort, arrived)


def _equal_rounds(strategy: Strategy[Any], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield these rounds, cut into intervals whose rounds all release the same."""
    shown = _release_key(strategy)
    first, before = start, shown(start)
    for current in range(start + 1, end + 1):
        now = shown(current)
        if now != before:
            yield first, current - 1
            first, before = current, now
    yield first, end


def _release_key(strategy: Strategy[Any]) -> Callable[[int], object]:
    """Return a key that is equal for two rounds that release the same. For built-in strategies the noise and the
    groups of the sum tell. For a strategy of an installed package that states its own releases, the releases are
    compared, which is slower."""
    cohort = strategy.config.clients.per_round
    own = type(strategy).releases is not Strategy.releases
    if own and "strategy" in strategy.config.plugins:
        return lambda current: strategy.releases(current, cohort, cohort)
    return lambda current: (strategy.noise_of(current), strategy.wants_parts(current))
