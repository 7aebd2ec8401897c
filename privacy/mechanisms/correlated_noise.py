"""Correlated noise, row by row: a server adds row t of C^-1 Z to the sum of round t, so that the noise of different
rounds partly cancels (`privacy.accounting.factorisation`).

The rows Y_t solve C Y = Z: Y_t = (Z_t - sum_{s<t} C_ts Y_s) / C_tt, with fresh Z_t from the operating system. If C has
b diagonals, a row needs the b - 1 rows before it. That takes memory for b * d numbers; for a C without zeros these are
the rows of a whole pass.

**These rows are secret.** They are the noise of sums from which public models were made: whoever has them can subtract
the noise. They are stored in the checkpoints of a run, which only the owner can read (mode 600). They must be stored,
because without them later rounds could not cancel the noise of earlier ones. A row is used for one sum only: the same
noise on two sums would reveal their difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.accounting.factorisation import Matrix, bandwidth
from fedsketch.privacy.mechanisms.randomness import Stream


class CorrelatedRows:
    """Rows 0, 1, 2, ... of C^-1 Z in `dim` dimensions, with standard normal Z. After the last row of C it starts again
    with new, independent noise."""

    def __init__(self, strategy: Matrix, dim: int) -> None:
        self.strategy = strategy
        self.dim = dim
        self._kept = bandwidth(strategy) - 1
        self._next = 0
        self._rows: list[NDArray[np.float64]] = []  # the last ones, oldest first

    def row(self, index: int, stream: Callable[[int], Stream]) -> NDArray[np.float64]:
        """Return the row of a round, which can be asked for only once. `stream` gives the randomness of a row. Rows
        that were skipped are computed but not returned."""
        if index < self._next:
            raise ValueError(
                f"the noise of row {index} has been used; used again, it would protect nothing."
            )
        while self._next <= index:
            with stream(self._next) as source:
                made = self._next_row(self._next % len(self.strategy), source.gaussian(self.dim))
            self._next += 1
        return made

    def _next_row(self, position: int, fresh: NDArray[np.float64]) -> NDArray[np.float64]:
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
        """Return everything that the next rows depend on. It must stay secret for as long as the run's data must."""
        import torch

        rows = np.array(self._rows).reshape(-1, self.dim)
        return {"next": self._next, "rows": torch.from_numpy(rows)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was called."""
        self._next = state["next"]
        self._rows = list(state["rows"].numpy().copy())
