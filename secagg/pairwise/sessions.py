"""The rounds of a run with pairwise masks, and the keys that are exchanged ahead."""

from __future__ import annotations

from collections.abc import Iterable

from ..codec import VectorFormat
from ..identity import Directory
from ..options import SecAggOptions
from ..server_session import Numbers, RoundStage
from .server_session import PairwiseSession
from .settings import PairwiseSettings


class PairwiseSessions:
    """Makes the session of each round."""

    def __init__(self, options: SecAggOptions, directory: Directory | None) -> None:
        self._options = options
        self._directory = directory
        self._ahead: PairwiseSession | None = None

    def begin(
        self,
        run: int,
        numbers: Numbers,
        nodes: Iterable[int],
        vector: VectorFormat,
        broadcast: bytes,
    ) -> PairwiseSession:
        """Return the next round, with the keys that were exchanged in advance if they are for such a round."""
        cohort = tuple(sorted(nodes))
        session = self._prepared(cohort, vector)
        if session is None:
            session = self._open(run, numbers, cohort, vector, broadcast)
        session.bind(broadcast)
        return session

    def ahead(
        self,
        session: PairwiseSession,
        numbers: Numbers,
        nodes: Iterable[int] | None,
        vector: VectorFormat,
    ) -> PairwiseSession | None:
        """Return the round whose keys go with the messages of the coming step, if there is one."""
        if self._ahead is not None and self._ahead.stage in (RoundStage.MASK, RoundStage.DONE):
            return None
        ride = RoundStage.SIGN if session.settings.consistency else RoundStage.MASK
        if session.stage is ride and self._options.merged and nodes is not None:
            self._ahead = self._open(session.settings.run, numbers, nodes, vector, b"")
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
    ) -> PairwiseSession:
        settings = PairwiseSettings.proposed(
            self._options, run, numbers.draw(), nodes, vector, broadcast
        )
        return PairwiseSession(settings, self._directory)

    def _prepared(self, cohort: tuple[int, ...], vector: VectorFormat) -> PairwiseSession | None:
        """Return the round whose keys were exchanged in advance, if it is this one."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.stage is not RoundStage.MASK:
            return None
        settings, groups = ahead.settings, self._options.for_vector(vector).groups
        found = (settings.dim, settings.bits, settings.application, settings.groups)
        same = settings.cohort == cohort
        return (
            ahead
            if same and found == (vector.dim, vector.bits, vector.application, groups)
            else None
        )
