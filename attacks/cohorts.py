"""Cohorts of the audit: as the run draws them, or chosen by an adversary who may choose them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import StrEnum

from fedsketch.conf.schema import ClientsConfig
from fedsketch.strategies.rounds.sampling import CohortSampler


class Draw(StrEnum):
    """Who is in a round's cohort, and who knows it.

    - CHOSEN: always the same clients, chosen by an adversary against whom no draw counts.
    - KNOWN: the run's own draw, which is not secret.
    - SHOWN: the run's own draw, and the adversary's own clients, who see the draw.
    - POISSON: the run's own secret draw.
    - FIXED: a secret set of known size.
    - BESIDE_COLLUDING: a secret set of known size, and the adversary's own clients, who are in every cohort.
    """

    CHOSEN = "chosen"
    KNOWN = "known"
    SHOWN = "shown to colluding clients"
    POISSON = "poisson"
    FIXED = "fixed"
    BESIDE_COLLUDING = "fixed, beside colluding clients"


class ChosenCohorts(CohortSampler):
    """The same clients in every round."""

    def __init__(self, settings: ClientsConfig, chosen: Sequence[int]) -> None:
        super().__init__(settings, 0)
        self._chosen = sorted(chosen)

    def draw(self, round: int) -> list[int]:
        return list(self._chosen)


class FixedSizeCohorts(CohortSampler):
    """The first clients always, and a secret set of the others, of the usual size whatever the run's sampling is."""

    def __init__(self, settings: ClientsConfig, always: Sequence[int]) -> None:
        super().__init__(settings, secrets.randbits(128))
        self._always = list(always)
        self._drawn: dict[int, list[int]] = {}

    def draw(self, round: int) -> list[int]:
        if round not in self._drawn:
            others = [c for c in range(self.settings.total) if c not in self._always]
            size = self.settings.per_round - len(self._always)
            drawn = secrets.SystemRandom().sample(others, size)
            self._drawn[round] = sorted([*self._always, *drawn])
        return self._drawn[round]


class WithColludingClients(CohortSampler):
    """The run's own draw, and always the first clients."""

    def __init__(self, settings: ClientsConfig, colluding_clients: int) -> None:
        super().__init__(settings, secrets.randbits(128))
        self._colluding_clients = set(range(colluding_clients))

    def draw(self, round: int) -> list[int]:
        return sorted(self._colluding_clients.union(super().draw(round)))
