"""The count sketch: every coordinate is added, with a random sign, into one of k random buckets, all from a seed.

It takes O(d) time. E[adjoint(forward(x))] = x over the seeds, because two coordinates in the same bucket have
independent signs.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedsketch.sketching.seeded_sketch import PublicStream, Purpose
from fedsketch.sketching.sketch import SEED_BYTES, DigestPart, Sketch, checked_seed


class CountSketch(Sketch):
    """S has one nonzero entry, +-1, in every row. On a GPU the order in which a bucket is summed is not fixed."""

    def __init__(self, k: int, d: int, seed: int) -> None:
        super().__init__(k, d)
        if not 1 <= k < 1 << 32:
            raise ValueError(f"A count sketch has 1 to 2^32 - 1 buckets, not {k:,}.")
        self._seed = checked_seed(seed)
        self._signs = torch.from_numpy(PublicStream(seed, Purpose.SIGNS).signs(d))
        self._buckets = torch.from_numpy(PublicStream(seed, Purpose.BUCKETS).below(k, d))

    @property
    def description_bytes(self) -> int:
        return SEED_BYTES

    def row_norms_squared(self) -> Tensor:
        return torch.ones(self.shape[1], dtype=torch.float64)

    def forward_rows(self, rows: Tensor) -> Tensor:
        signs, buckets = self._signs.to(rows), self._buckets.to(rows.device)
        # One row at a time, because float64 sums need a copy of what is summed.
        sums = [
            torch.bincount(buckets, weights=(row * signs).double(), minlength=self.shape[0])
            for row in rows
        ]
        return torch.stack(sums).to(rows.dtype) if sums else rows.new_empty(0, self.shape[0])

    def adjoint_rows(self, rows: Tensor) -> Tensor:
        return rows[:, self._buckets.to(rows.device)] * self._signs.to(rows)

    def digest_parts(self) -> Iterable[DigestPart]:
        return (self._seed,)
