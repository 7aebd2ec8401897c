"""What a run has spent, per adversary; and the refusal to spend more than the budget."""

import json
import math

from conf import Config
from conf.schema import Against
from privacy.accounting import Accountant
from strategies.noise import NoisePlan


class Accounts:
    """One accountant per adversary. `model` is charged for applied rounds, `server` for every attempt that it saw."""

    def __init__(self, config: Config, noise: NoisePlan) -> None:
        self._noise = noise
        self._budget = config.privacy.epsilon
        self._against = config.privacy.against
        self._accountants = {adversary: Accountant(config.privacy.delta) for adversary in Against}

    def affordable(self) -> bool:
        """Whether one more round fits into the budget."""
        if self._budget is None:
            return True
        release = self._noise.releases()[self._against]
        return not self._accountants[self._against].would_exceed(release, self._budget)

    def charge(self, adversary: Against, cohort: int) -> None:
        self._accountants[adversary].record(self._noise.releases(cohort)[adversary])

    def charge_lost(self, attempts: list[tuple[int, int]], checkpoint: int) -> None:
        """Charge what was seen after a checkpoint and before a kill; those rounds will be played again with other noise.

        The server saw every attempt. A cohort asked for round r got the model of round r - 1, so that one is out too.
        """
        for _, cohort in attempts:
            self.charge(Against.server, cohort)
        published = {round - 1: cohort for round, cohort in attempts if round - 1 > checkpoint}
        for cohort in published.values():
            self.charge(Against.model, cohort)

    def epsilon(self) -> dict[str, float | None]:
        """What each adversary can have learned so far; None means no guarantee."""
        spent = {
            a.value: accountant.epsilon().epsilon for a, accountant in self._accountants.items()
        }
        return {name: value if math.isfinite(value) else None for name, value in spent.items()}

    def to_json(self) -> str:
        return json.dumps(
            {a.value: accountant.to_json() for a, accountant in self._accountants.items()}
        )

    def load_json(self, text: str) -> None:
        self._accountants = {
            Against(name): Accountant.from_json(state) for name, state in json.loads(text).items()
        }
