"""The layer-wise sketch of DOME: for a weight matrix with gradient G (o x i) send G P, with P (i x r) orthonormal.

S = blockdiag(I kron P_l), small tensors whole: linear like any other, so secure aggregation and noise are as before. The subspace of a
layer's inputs is learned from o rows a round, a client needs O(d) memory, and the description is sum i r numbers instead of d k.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from sketching.fingerprint import Part
from sketching.folding import Fold
from sketching.orthonormal import OrthonormalSketch
from sketching.probes import probes
from sketching.seeded import Purpose, Words
from sketching.sketch import SEED_BYTES, Sketch


class LayerwiseSketch(Sketch):
    """`bases` has, for each fold, P_l (columns x rank), or None where the tensor is sent whole.

    `seeded` says that the other side makes all of them from a seed.
    """

    def __init__(
        self, folds: Sequence[Fold], bases: Sequence[Tensor | None], *, seeded: bool = False
    ) -> None:
        super().__init__(sum(fold.size for fold in folds), max(fold.stop for fold in folds))
        for fold, basis in zip(folds, bases, strict=True):
            expected = None if fold.whole else (fold.columns, fold.rank)
            if (None if basis is None else tuple(basis.shape)) != expected:
                raise ValueError(
                    f"The tensor at {fold.start} needs a basis of shape {expected}, not "
                    f"{None if basis is None else tuple(basis.shape)}: make bases and folds together."
                )
        self._folds = tuple(folds)
        # Each shortens one row of its matrix.
        self._sketches = [None if basis is None else OrthonormalSketch(basis) for basis in bases]
        self._seeded = seeded

    @property
    def folds(self) -> tuple[Fold, ...]:
        return self._folds

    @property
    def bases(self) -> tuple[Tensor | None, ...]:
        return tuple(None if sketch is None else sketch.basis for sketch in self._sketches)

    @property
    def description_bytes(self) -> int:
        if self._seeded:
            return SEED_BYTES
        return sum(sketch.description_bytes for sketch in self._sketches if sketch is not None)

    def row_norms_squared(self) -> Tensor:
        norms = torch.ones(self.shape[1], dtype=torch.float64)
        for fold, sketch in zip(self._folds, self._sketches, strict=True):
            if sketch is not None:
                fold.matrix(norms)[:] = sketch.row_norms_squared()
        return norms

    def _forward(self, rows: Tensor) -> Tensor:
        result = rows.new_empty(len(rows), self.shape[0])
        end = 0
        for fold, sketch in zip(self._folds, self._sketches, strict=True):
            piece = rows[:, fold.start : fold.stop]
            if sketch is not None:
                piece = sketch.forward(piece.reshape(-1, fold.columns)).view(len(rows), fold.size)
            result[:, end : end + fold.size] = piece
            end += fold.size
        return result

    def _adjoint(self, rows: Tensor) -> Tensor:
        result = rows.new_empty(len(rows), self.shape[1])
        end = 0
        for fold, sketch in zip(self._folds, self._sketches, strict=True):
            piece = rows[:, end : end + fold.size]
            if sketch is not None:
                piece = sketch.adjoint(piece.reshape(-1, fold.rank)).view(len(rows), -1)
            result[:, fold.start : fold.stop] = piece
            end += fold.size
        return result

    def _parts(self) -> Iterable[Part]:
        for fold, sketch in zip(self._folds, self._sketches, strict=True):
            yield from (fold.start, fold.rows, fold.columns, fold.rank)
            yield "whole" if sketch is None else sketch.fingerprint()


def completed_bases(
    folds: Sequence[Fold], learned: Sequence[Tensor | None], seed: int
) -> list[Tensor | None]:
    """P_l = [U_l | Q_l]: the learned columns of each fold (columns x any number up to its rank; None is none) and
    probes from the seed for the rest."""
    bases: list[Tensor | None] = []
    for index, (fold, known) in enumerate(zip(folds, learned, strict=True)):
        if fold.whole:
            bases.append(None)
            continue
        start = torch.empty(fold.columns, 0) if known is None else known
        if start.shape[1] > fold.rank:
            raise ValueError(
                f"The tensor at {fold.start} has room for {fold.rank} directions, not for "
                f"{start.shape[1]} learned ones: keep fewer."
            )
        # Layers of one shape must not get the same probes.
        own_seed = int(Words(seed, Purpose.LAYERS, index).uint64(1)[0])
        bases.append(torch.cat([start, probes(own_seed, fold.rank - start.shape[1], start)], dim=1))
    return bases
