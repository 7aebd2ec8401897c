"""What a run has spent, per adversary; and the refusal to spend more than the budget."""

import json
import math
from dataclasses import replace
from itertools import pairwise

from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import NoSampling
from fedsketch.server.report.readable import OVERHEARD
from fedsketch.strategies.shared.device_noise import NoisePlan


class Accounts:
    """One accountant per adversary. `model` is charged for applied rounds, `server` for every attempt; and so is the eavesdropper of
    a secret sketch, where a theorem covers one."""

    def __init__(self, noise: NoisePlan) -> None:
        self._noise = noise
        self._privacy = noise.config.privacy
        names = [adversary.value for adversary in Against]
        if noise.overheard(noise.config.clients.per_round, 1) is not None:
            names.append(OVERHEARD)
        self._accountants = {name: Accountant(self._privacy.delta) for name in names}

    def affordable(self) -> bool:
        """Whether one more round fits into the budget."""
        if self._privacy.epsilon is None:
            return True
        bound = OVERHEARD if self._noise.r_secret else self._privacy.against.value
        accountant = self._accountants[bound]
        return not accountant.would_exceed(self._noise.worst_release(), self._privacy.epsilon)

    def charge(self, adversary: Against, cohort: int, clients: int | None = None) -> None:
        """One more round of this cohort, of whom so many arrived (the fewest allowed if nobody knows)."""
        arrived = self._noise.survivors(cohort) if clients is None else clients
        self._accountants[adversary.value].record(self._noise.releases(cohort, arrived)[adversary])
        overheard = self._noise.overheard(cohort, arrived)
        if adversary is Against.server and overheard is not None:
            self._accountants[OVERHEARD].record(overheard)

    def charge_lost(self, attempts: list[tuple[int, int]]) -> None:
        """Charge what was seen after a checkpoint and before a kill; those rounds will be played again with other noise.

        The server saw every attempt. When a cohort was asked for a later round, the model of the round before it was out too.
        """
        for _, cohort in attempts:
            self.charge(Against.server, cohort)
        for (round, cohort), (later, _) in pairwise(attempts):
            if later > round:  # not a retry, and not the start of another life of the run
                seen = self._noise.releases(cohort, self._noise.survivors(cohort))[Against.model]
                # The same cohort will be asked again, so its draw hides nobody a second time.
                self._accountants[Against.model.value].record(replace(seen, sampling=NoSampling()))

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
