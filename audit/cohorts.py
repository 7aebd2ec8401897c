"""Cohorts of the audit: as the run draws them, or chosen by an adversary who may choose them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import StrEnum

from fedsketch.conf.schema import ClientsConfig
from fedsketch.strategies.shared.cohort import Cohorts


class Draw(StrEnum):
    """Who is in a round's cohort, and who knows it.

    CHOSEN: always the same, by an adversary against whom no draw counts. KNOWN: by the run's own draw, which is no secret (full passes).
    POISSON: by the run's own secret draw. FIXED: a secret set of a size that is known.
    """

    CHOSEN = "chosen"
    KNOWN = "known"
    POISSON = "poisson"
    FIXED = "fixed"


class ChosenCohorts(Cohorts):
    """The same clients in every round."""

    def __init__(self, settings: ClientsConfig, chosen: Sequence[int]) -> None:
        super().__init__(settings, 0)
        self._chosen = sorted(chosen)

    def draw(self, round: int, attempt: int = 0) -> list[int]:
        return list(self._chosen)


class FixedSizeCohorts(Cohorts):
    """The first clients always, and a secret set of the others: of the usual size, whatever the run's sampling is."""

    def __init__(self, settings: ClientsConfig, always: Sequence[int]) -> None:
        super().__init__(settings, secrets.randbits(128))
        self._always = list(always)
        self._drawn: dict[tuple[int, int], list[int]] = {}

    def draw(self, round: int, attempt: int = 0) -> list[int]:
        if (round, attempt) not in self._drawn:
            others = [c for c in range(self.settings.total) if c not in self._always]
            size = self.settings.per_round - len(self._always)
            drawn = secrets.SystemRandom().sample(others, size)
            self._drawn[round, attempt] = sorted([*self._always, *drawn])
        return self._drawn[round, attempt]
