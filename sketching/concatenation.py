"""Sketches side by side, S = [U | Q]: the learned directions and the probes, without copying either."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from sketching.fingerprint import Part
from sketching.sketch import Sketch


class ConcatenatedSketch(Sketch):
    """The sketches of the same vector one after the other. If both parts are orthonormal and orthogonal to each
    other (probes made against U are), so is the whole."""

    def __init__(self, first: Sketch, second: Sketch) -> None:
        if first.shape[1] != second.shape[1]:
            raise ValueError(
                f"Sketches side by side look at the same vector, not at {first.shape[1]:,} and "
                f"{second.shape[1]:,} numbers: make both for the same d."
            )
        super().__init__(first.shape[0] + second.shape[0], first.shape[1])
        self._first = first
        self._second = second

    @property
    def description_bytes(self) -> int:
        return self._first.description_bytes + self._second.description_bytes

    def row_norms_squared(self) -> Tensor:
        return self._first.row_norms_squared() + self._second.row_norms_squared()

    def _forward(self, rows: Tensor) -> Tensor:
        return torch.cat([self._first.forward(rows), self._second.forward(rows)], dim=1)

    def _adjoint(self, rows: Tensor) -> Tensor:
        cut = self._first.shape[0]
        return self._first.adjoint(rows[:, :cut]) + self._second.adjoint(rows[:, cut:])

    def _parts(self) -> Iterable[Part]:
        return (self._first.fingerprint(), self._second.fingerprint())
