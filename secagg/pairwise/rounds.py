"""The rounds of a run with pairwise masks, and the keys that are exchanged ahead."""

from __future__ import annotations

from collections.abc import Iterable

from ..codec import VectorFormat
from ..coordinator import Numbers, Step
from ..identity import Directory
from ..options import SecAggOptions
from .coordinator import Coordinator
from .settings import PairwiseSettings


class PairwiseRounds:
    """Makes the coordinator of each round."""

    def __init__(self, options: SecAggOptions, directory: Directory | None) -> None:
        self._options = options
        self._directory = directory
        self._ahead: Coordinator | None = None

    def begin(
        self,
        run: int,
        numbers: Numbers,
        nodes: Iterable[int],
        vector: VectorFormat,
        broadcast: bytes,
    ) -> Coordinator:
        """Return the next round, with the keys that were exchanged in advance if they are for such a round."""
        cohort = tuple(sorted(nodes))
        coordinator = self._prepared(cohort, vector)
        if coordinator is None:
            coordinator = self._open(run, numbers, cohort, vector, broadcast)
        coordinator.bind(broadcast)
        return coordinator

    def ahead(
        self,
        coordinator: Coordinator,
        numbers: Numbers,
        nodes: Iterable[int] | None,
        vector: VectorFormat,
    ) -> Coordinator | None:
        """Return the round whose keys go with the messages of the coming step, if there is one."""
        if self._ahead is not None and self._ahead.step in (Step.MASK, Step.DONE):
            return None
        ride = Step.SIGN if coordinator.settings.consistency else Step.MASK
        if coordinator.step is ride and self._options.merged and nodes is not None:
            self._ahead = self._open(coordinator.settings.run, numbers, nodes, vector, b"")
        return self._ahead

    def drop_ahead(self) -> None:
        """Forget the round whose keys were to be exchanged ahead."""
        self._ahead = None

    def _open(
        self,
        run: int,
        numbers: Numbers,
        nodes: Iterable[int],
        vector: VectorFormat,
        broadcast: bytes,
    ) -> Coordinator:
        settings = PairwiseSettings.proposed(
            self._options, run, numbers.draw(), nodes, vector, broadcast
        )
        return Coordinator(settings, self._directory)

    def _prepared(self, cohort: tuple[int, ...], vector: VectorFormat) -> Coordinator | None:
        """Return the round whose keys were exchanged in advance, if it is this one."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.step is not Step.MASK:
            return None
        settings, groups = ahead.settings, self._options.for_vector(vector).groups
        found = (settings.dim, settings.bits, settings.application, settings.groups)
        same = settings.cohort == cohort
        return (
            ahead
            if same and found == (vector.dim, vector.bits, vector.application, groups)
            else None
        )
