"""Noise that cancels over rounds, row by row: a server adds row t of C^-1 Z to the sum of round t
(`privacy.accounting.factorisation`).

Row t solves C Y = Z: Y_t = (Z_t - sum_{s<t} C_ts Y_s) / C_tt, with fresh Z_t from the operating system. So b diagonals
need the last b - 1 rows of Y: memory b * d numbers, which for a C without zeros is that of all rounds of a pass.

**These rows are secrets.** They are the noise of sums whose models are public: whoever has them can take the noise
away. They are in the checkpoints of a run, which only their owner can read (mode 600), and must be: without them the
noise that is already out could not be cancelled. A row is made when its sum is released and never again: the same noise
on two sums would show their difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.accounting.factorisation import Matrix, bandwidth
from fedsketch.privacy.mechanisms.randomness import Stream


class CorrelatedNoise:
    """Rows 0, 1, 2, ... of C^-1 Z in `dim` dimensions, with standard normal Z. After the last row of C it begins again,
    with new noise that knows nothing of the old."""

    def __init__(self, strategy: Matrix, dim: int) -> None:
        self.strategy = strategy
        self.dim = dim
        self._kept = bandwidth(strategy) - 1
        self._next = 0
        self._rows: list[NDArray[np.float64]] = []  # the last ones, oldest first

    def row(self, index: int, stream: Callable[[int], Stream]) -> NDArray[np.float64]:
        """The row of a round, once; `stream` gives the randomness of a row. Rows that were passed over are made and
        shown to nobody."""
        if index < self._next:
            raise ValueError(
                f"the noise of row {index} has been used, and a second time it would hide nothing."
            )
        while self._next <= index:
            with stream(self._next) as source:
                made = self._made(self._next % len(self.strategy), source.gaussian(self.dim))
            self._next += 1
        return made

    def _made(self, position: int, fresh: NDArray[np.float64]) -> NDArray[np.float64]:
        if position == 0:
            self._rows = []
        factors = self.strategy[position]
        known = self._rows
        for row, factor in zip(known, factors[position - len(known) : position], strict=True):
            fresh -= factor * row
        fresh /= factors[position]
        self._rows = [*known, fresh][max(0, len(known) + 1 - self._kept) :]
        return fresh.copy()

    def state_dict(self) -> dict[str, Any]:
        """What the next rows depend on. A secret, as long as the run's."""
        import torch

        rows = np.array(self._rows).reshape(-1, self.dim)
        return {"next": self._next, "rows": torch.from_numpy(rows)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]
        self._rows = list(state["rows"].numpy().copy())
