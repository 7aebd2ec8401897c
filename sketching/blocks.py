"""The block sketch: every block of neighbouring numbers becomes one number, their sum with random signs from a seed.

It is a count sketch whose buckets are consecutive pieces of the vector. It takes O(d) time and reads memory in order,
so it suits large d, and any k. With entries +-1, S S^T is 1 on the diagonal. Within a block the other entries are
products of two independent signs, and all remaining entries are 0. So E[S S^T] = I over the seeds: S S^T x is an
unbiased estimate of x. Signs differ from block to block. A layer-wise sketch looks at all rows of a weight in the same
few directions, so it can miss or overrate a whole layer at once; here such errors average out over the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from fedsketch.sketching.folding import Fold
from fedsketch.sketching.seeded_sketch import PublicStream, Purpose
from fedsketch.sketching.sketch import SEED_BYTES, DigestPart, Sketch, checked_seed


def block_folds(size: int, count: int) -> tuple[Fold, ...]:
    """Divide a vector of this size into at most `count` blocks of equal length. The last block may be shorter. One
    number per block is sent."""
    if not 1 <= count <= size:
        raise ValueError(
            f"A block sketch of a vector of {size:,} numbers has 1 to {size:,} numbers, not {count:,}."
        )
    length = -(-size // count)
    rows, rest = divmod(size, length)
    folds = [Fold(0, rows, length, 1)]
    if rest:
        folds.append(Fold(rows * length, 1, rest, 1))
    return tuple(folds)


class BlockSketch(Sketch):
    """S has one nonzero entry in every row. It is +-1 if `isotropic`; otherwise it is scaled so that the columns have
    length 1 and S S^T is a projection."""

    def __init__(self, folds: Iterable[Fold], seed: int, *, isotropic: bool = True) -> None:
        self._folds = tuple(folds)
        super().__init__(sum(fold.size for fold in self._folds), self._folds[-1].stop)
        self._seed, self._isotropic = checked_seed(seed), isotropic
        self._signs = torch.from_numpy(PublicStream(seed, Purpose.SIGNS).signs(self.shape[1]))

    @property
    def folds(self) -> tuple[Fold, ...]:
        """Every row of these folds is a block."""
        return self._folds

    @property
    def description_bytes(self) -> int:
        return SEED_BYTES

    def row_norms_squared(self) -> Tensor:
        norms = torch.ones(self.shape[1], dtype=torch.float64)
        for fold in self._folds:
            norms[fold.start : fold.stop] *= self._entry(fold) ** 2
        return norms

    def forward_rows(self, rows: Tensor) -> Tensor:
        signs, parts = self._signs.to(rows), []
        for fold in self._folds:
            signed = rows[:, fold.start : fold.stop] * signs[fold.start : fold.stop]
            sums = signed.view(len(rows), fold.rows, fold.columns).sum(dim=2)
            parts.append(sums * self._entry(fold))
        return torch.cat(parts, dim=1)

    def adjoint_rows(self, rows: Tensor) -> Tensor:
        parts, end = [], 0
        for fold in self._folds:
            sketched = rows[:, end : end + fold.rows] * self._entry(fold)
            parts.append(sketched.repeat_interleave(fold.columns, dim=1))
            end += fold.rows
        return torch.cat(parts, dim=1) * self._signs.to(rows)

    def _entry(self, fold: Fold) -> float:
        return 1.0 if self._isotropic else 1 / math.sqrt(fold.columns)

    def digest_parts(self) -> Iterable[DigestPart]:
        yield from (self._seed, "isotropic" if self._isotropic else "projection")
        for fold in self._folds:
            yield from (fold.rows, fold.columns)
