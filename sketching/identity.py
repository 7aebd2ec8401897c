"""The identity sketch, which sends the full vector: for warm-up rounds and for comparison."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedsketch.sketching.sketch import DigestPart, Sketch


class IdentitySketch(Sketch):
    """S = I, k = d."""

    def __init__(self, d: int) -> None:
        super().__init__(d, d)

    @property
    def description_bytes(self) -> int:
        return 0

    def row_norms_squared(self) -> Tensor:
        return torch.ones(self.shape[1], dtype=torch.float64)

    def forward_rows(self, rows: Tensor) -> Tensor:
        # Return a copy. Otherwise clipping the sketch in place would also change the caller's vector.
        return rows.clone()

    def adjoint_rows(self, rows: Tensor) -> Tensor:
        return rows.clone()

    def digest_parts(self) -> Iterable[DigestPart]:
        return ()
