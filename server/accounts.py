"""What a run has spent, per adversary; and the refusal to spend more than the budget."""

import json
import math
from collections.abc import Iterable
from itertools import pairwise

from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.strategies.shared.base import FederatedStrategy


class Accounts:
    """One accountant for each adversary that the strategy's releases name. `model` is charged for rounds that were applied, all others for
    every attempt."""

    def __init__(self, strategy: FederatedStrategy) -> None:
        self._strategy = strategy
        self._privacy = strategy.config.privacy
        cohort = strategy.config.clients.per_round
        names = strategy.releases(1, cohort, strategy.sizes.survivors(cohort))
        self._accountants = {str(name): Accountant(self._privacy.delta) for name in names}

    def affordable(self, server_round: int) -> bool:
        """Whether this round, of the usual size and with as many dropouts as it tolerates, fits into the budget."""
        if self._privacy.epsilon is None:
            return True
        cohort = self._strategy.config.clients.per_round
        fewest = self._strategy.sizes.survivors(cohort)
        bound = self._strategy.bound
        worst = self._strategy.releases(server_round, cohort, fewest)[bound]
        return not self._accountants[bound].would_exceed(worst, self._privacy.epsilon)

    def charge_attempt(self, server_round: int, cohort: int, clients: int | None = None) -> None:
        """A cohort of this size was asked, and so many arrived (the fewest allowed if nobody knows)."""
        others = [name for name in self._accountants if name != Against.model]
        self._charge(others, server_round, cohort, clients)

    def charge_model(self, server_round: int, cohort: int, clients: int | None = None) -> None:
        """The round was applied: its model is out."""
        self._charge([Against.model], server_round, cohort, clients)

    def charge_lost(self, attempts: list[tuple[int, int]]) -> None:
        """Charge what was seen after a checkpoint and before a kill; those rounds will be played again with other noise.

        The server saw every attempt. When a cohort was asked for a later round, the model of the round before it was out too.
        """
        for server_round, cohort in attempts:
            self.charge_attempt(server_round, cohort)
        for (server_round, cohort), (later, _) in pairwise(attempts):
            if later > server_round:  # not a retry, and not the start of another life of the run
                fewest = self._strategy.sizes.survivors(cohort)
                seen = self._strategy.releases(server_round, cohort, fewest)[Against.model]
                # The same cohort will be asked again, so its draw hides nobody a second time.
                self._accountants[Against.model].record(seen.with_known_cohort())

    def epsilon(self) -> dict[str, float | None]:
        """What each adversary can have learned so far; None means no guarantee."""
        spent = {name: account.epsilon().epsilon for name, account in self._accountants.items()}
        return {name: value if math.isfinite(value) else None for name, value in spent.items()}

    def to_json(self) -> str:
        return json.dumps({name: account.to_json() for name, account in self._accountants.items()})

    def load_json(self, text: str) -> None:
        self._accountants = {
            name: Accountant.from_json(state) for name, state in json.loads(text).items()
        }

    def _charge(
        self, names: Iterable[str], server_round: int, cohort: int, clients: int | None
    ) -> None:
        arrived = self._strategy.sizes.survivors(cohort) if clients is None else clients
        seen = self._strategy.releases(server_round, cohort, arrived)
        for name in names:
            self._accountants[name].record(seen[name])
