"""The server's choices, from which the settings of each round follow."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from . import graph
from .codec import VectorFormat
from .errors import SettingsError
from .settings import NONCE_BYTES, RoundSettings, Sizes
from .wrapped_grid import POLL_INTERVAL


@dataclass(frozen=True)
class SecAggOptions:
    """The server's choices about all rounds.

    `drops` are the dropouts that a sum tolerates and `colluders` the clients that may work with the
    server; a float below 1 is a fraction (of a group, of the cohort), an int a count. With
    `consistency` a round has at most 1,024 clients (in each group), who all exchange masks. Without, it
    takes 4 round trips instead of 5, more than 128 clients exchange masks with their neighbours in a
    ring, and it is private against a semi-honest server only. With `merged` the keys and shares of the
    next round are sent with the last messages of this one (3 round trips), if the next round has the same
    cohort or the one told to `SecAggGrid.expect`.
    `stage_timeout` bounds the stages around training, `train_timeout` training itself. When enough clients
    for a sum have answered, the others get `patience` times as long again, at least 10 s.
    """

    drops: int | float = 0.1
    colluders: int | float = 0
    consistency: bool = True
    groups: int = 1
    merged: bool = False
    stage_timeout: float = 120.0
    train_timeout: float = 3600.0
    patience: float = 3.0
    poll_interval: float = POLL_INTERVAL

    def __post_init__(self) -> None:
        for name, value in (("drops", self.drops), ("colluders", self.colluders)):
            if value < 0 or (isinstance(value, float) and value >= 1):
                raise SettingsError(f"{name} is a fraction below 1 or a count, not {value}.")
        if self.groups < 1:
            raise SettingsError("A round has at least one group.")
        if min(self.stage_timeout, self.train_timeout, self.poll_interval) <= 0:
            raise SettingsError("Timeouts and the poll interval are positive.")
        if self.patience < 0:
            raise SettingsError("The patience with late nodes is not negative.")

    def sizes(self, n: int) -> Sizes:
        """Return the numbers of a round with n clients."""
        return Sizes.of(n, self.drops, self.colluders, self.groups)

    def for_vector(self, vector: VectorFormat) -> SecAggOptions:
        """Return these options with the groups that the vector asks for, if it asks for any."""
        return self if vector.groups is None else replace(self, groups=vector.groups)

    def settings(
        self, run: int, round: int, cohort: Iterable[int], vector: VectorFormat, broadcast: bytes
    ) -> RoundSettings:
        """Return the settings of a round, with the smallest threshold and quorum that the rules allow."""
        nodes = tuple(sorted(cohort))
        sizes = self.for_vector(vector).sizes(len(nodes))
        degree, threshold = self._graph(sizes)
        return RoundSettings(
            run=run,
            round=round,
            nonce=os.urandom(NONCE_BYTES),
            cohort=nodes,
            degree=degree,
            threshold=threshold,
            quorum=sizes.needed,
            drops=sizes.drops,
            colluders=sizes.colluders,
            groups=sizes.groups,
            consistency=self.consistency,
            dim=vector.dim,
            bits=vector.bits,
            broadcast=broadcast,
            application=vector.application,
        )

    def _graph(self, sizes: Sizes) -> tuple[int, int]:
        """Return the degree and the threshold: those of a ring where one is allowed and possible."""
        if not self.consistency and sizes.groups == 1 and sizes.n > graph.RINGS_ABOVE:
            # With too many drops or colluders for a ring, the complete graph may still work.
            with suppress(SettingsError):
                return graph.ring_parameters(sizes.n, sizes.colluders, sizes.drops)
        return sizes.most - 1, sizes.needed
