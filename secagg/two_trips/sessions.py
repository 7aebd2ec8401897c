"""The rounds of a run in two trips: their epochs, and the keys that are exchanged ahead."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from itertools import pairwise

from ..codec import VectorFormat
from ..identity import Directory
from ..options import SecAggOptions
from ..server_session import Numbers, RoundStage
from .epoch import Introductions, ServerEpoch
from .server_session import TwoTripsSession
from .settings import Terms


class TwoTripsSessions:
    """Makes the session of each round."""

    def __init__(self, options: SecAggOptions, directory: Directory | None) -> None:
        self._options = options
        self._directory = directory
        self._epoch: ServerEpoch | None = None

    def begin(
        self,
        run: int,
        numbers: Numbers,
        nodes: Iterable[int],
        vector: VectorFormat,
        broadcast: bytes,
    ) -> TwoTripsSession:
        """Return the next round. What was broadcast, only the devices need to know."""
        cohort, round = sorted(nodes), numbers.draw()
        epoch = self._epoch_of(run, round, cohort)
        terms = terms_of(self._options, vector, len(cohort))
        groups = divided(cohort, terms.groups, epoch)
        return TwoTripsSession(epoch, round, groups, terms, self._directory)

    def ahead(
        self,
        session: TwoTripsSession,
        numbers: Numbers,
        nodes: Iterable[int] | None,
        vector: VectorFormat,
    ) -> Introductions | None:
        """Return what can go with the messages of the coming stage: with the vectors the keys of those who gave none,
        and with the answers those that the next round needs."""
        self._epoch = epoch = session.epoch
        if session.stage is RoundStage.MASK:
            return self._introductions(epoch, epoch.lacking(session.nodes))
        if session.stage is not RoundStage.ANSWER or nodes is None:
            return None
        cohort = sorted(nodes)
        following = self._epoch_of(epoch.run, numbers.next, cohort)
        unsure = session.unsure if following is epoch else ()
        return self._introductions(following, {*following.lacking(cohort), *unsure})

    def drop_ahead(self) -> None:
        """Do nothing: keys that did not come are asked for again."""

    def _introductions(self, epoch: ServerEpoch, nodes: Iterable[int]) -> Introductions | None:
        wanted = set(nodes)
        return Introductions(epoch, wanted, self._directory) if wanted else None

    def _epoch_of(self, run: int, round: int, nodes: list[int]) -> ServerEpoch:
        """Return the epoch of a round: the current one, unless it cannot go on."""
        epoch = self._epoch
        if epoch is None or not (
            epoch.run == run
            and not epoch.over
            and 0 <= round - epoch.number < self._options.epoch_rounds
            and (not epoch.closed or epoch.members.issuperset(nodes))
        ):
            epoch = ServerEpoch(run, round, self._options.closed, members=frozenset(nodes))
        self._epoch = epoch
        return epoch


def terms_of(options: SecAggOptions, vector: VectorFormat, n: int) -> Terms:
    """Return the terms of rounds in which n clients send such vectors."""
    chosen = options.for_vector(vector)
    sizes = chosen.sizes(n)
    return Terms(
        n,
        sizes.groups,
        sizes.drops,
        chosen.losses_of(sizes),
        sizes.colluders,
        vector.dim,
        vector.bits,
        vector.application,
    )


def divided(cohort: list[int], groups: int, epoch: ServerEpoch) -> list[tuple[int, ...]]:
    """Return the clients in groups whose sizes differ by at most one. Within an epoch the same clients make the same
    groups. Who is with whom protects nobody: all colluders may be in one group."""
    named = struct.pack("<QQ", epoch.run, epoch.number)
    order = sorted(
        cohort, key=lambda node: hashlib.sha256(named + struct.pack("<Q", node)).digest()
    )
    n = len(cohort)
    bounds = [place * n // groups for place in range(groups + 1)]
    return [tuple(sorted(order[start:end])) for start, end in pairwise(bounds)]
