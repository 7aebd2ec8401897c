"""What a run has spent, per adversary; and the refusal to spend more than the budget."""

import json
import logging
import math
from itertools import pairwise

from fedsketch.conf import ConfigError
from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting.accountant import Accountant, UnsupportedReleaseError
from fedsketch.privacy.accounting.releases import Release
from fedsketch.strategies.shared.base import FederatedStrategy

log = logging.getLogger(__name__)
_WAITING = (Against.model, Against.client)  # see nothing of a round before it is applied


class Accounts:
    """One accountant for each adversary that the strategy's releases name. Those who see models, fellow clients among them, are charged
    for rounds that were applied, all others for every attempt."""

    def __init__(self, strategy: FederatedStrategy) -> None:
        self._strategy = strategy
        self._privacy = strategy.config.privacy
        cohort = strategy.config.clients.per_round
        names = strategy.releases(1, cohort, strategy.sizes.survivors(cohort))
        self._accountants: dict[str, Accountant | None] = {
            str(name): Accountant(self._privacy.delta) for name in names
        }

    def affordable(self, server_round: int) -> bool:
        """Whether this round fits into the budget, whatever the size of its cohort, with as many dropouts as it tolerates."""
        if self._privacy.epsilon is None:
            return True
        spent = self._accountants[self._strategy.bound]
        try:
            worst = self._strategy.worst(server_round)
            return spent is not None and not spent.would_exceed(worst, self._privacy.epsilon)
        except UnsupportedReleaseError:
            return False  # no theorem covers one more

    def refuse_an_idle_run(self) -> None:
        """Raise ConfigError, before anything is spent, if the budget does not pay for the first round: the noise was given."""
        if not self.affordable(1):
            raise ConfigError(
                f"Not one round with a noise multiplier of {self._strategy.noise_multiplier:g} fits into "
                f"privacy.epsilon={self._privacy.epsilon:g} against {self._strategy.bound}: raise privacy.epsilon or "
                "privacy.noise_multiplier."
            )

    def charge_whole(self, first: int, last: int, cohort: int) -> None:
        """Rounds that show the same as each other, each asked once and applied, with as many dropouts as they tolerate."""
        for name, seen in self._seen(first, cohort, None).items():
            self._record(name, seen, last - first + 1)

    def charge_attempt(self, server_round: int, cohort: int, clients: int | None = None) -> None:
        """A cohort of this size was asked, and so many arrived (the fewest allowed if nobody knows)."""
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
        """The round was applied: its model is out. `known_cohort`: who was drawn is no secret any more."""
        for name, seen in self._seen(server_round, cohort, clients).items():
            if name in _WAITING:
                self._record(name, seen.with_known_cohort() if known_cohort else seen)

    def charge_lost(self, attempts: list[tuple[int, int]]) -> None:
        """Charge what was seen after a checkpoint and before a kill; those rounds will be played again with other noise.

        The server saw every attempt. When a cohort was asked for a later round, the model of the round before it was out too.
        """
        for server_round, cohort in attempts:
            self.charge_attempt(server_round, cohort)
        for (server_round, cohort), (later, _) in pairwise(attempts):
            if later > server_round:  # not a retry, and not the start of another life of the run
                # The same cohort will be asked again.
                for name, seen in self._seen(server_round, cohort, None).items():
                    if name in _WAITING:
                        self._record(name, seen.once_more())

    def epsilon(self) -> dict[str, float | None]:
        """What each adversary can have learned so far; None means no guarantee."""
        spent = {
            name: math.inf if account is None else account.epsilon().epsilon
            for name, account in self._accountants.items()
        }
        return {name: value if math.isfinite(value) else None for name, value in spent.items()}

    def to_json(self) -> str:
        accounts = self._accountants.items()
        return json.dumps({name: account and account.to_json() for name, account in accounts})

    def load_json(self, text: str) -> None:
        self._accountants = {
            name: state and Accountant.from_json(state) for name, state in json.loads(text).items()
        }

    def _record(self, name: str, seen: Release, count: int = 1) -> None:
        """Charge one adversary; who sees more than any theorem covers has no guarantee from then on."""
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
