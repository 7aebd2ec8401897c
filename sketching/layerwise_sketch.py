"""The layer-wise sketch of DOME: for a weight matrix with gradient G (o x i), send G P with orthonormal P (i x r).

S = blockdiag(I kron P_l); small tensors are sent whole. S is linear like every sketch, so secure aggregation and noise
work as usual. The subspace of a layer's inputs is learned from o rows per round. A client needs O(d) memory, and a
description of the sketch takes sum i r numbers instead of d k.

The columns of P are learned directions and q random probes. Probes see the share q / (i - learned) of the energy
(squared norm) outside of the learned directions. With `isotropic` their length is multiplied by the square root of the
inverse of this share. Then E[S S^T] = I over the seeds, so S S^T g is an unbiased estimate of g, and the sketch of a
tensor has on average the same energy as the tensor. So tensors that are sent whole do not take more than their share
of a common clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from fedsketch.sketching.cholesky_qr import orthonormalise
from fedsketch.sketching.folding import Fold
from fedsketch.sketching.seeded_sketch import PublicStream, Purpose
from fedsketch.sketching.sketch import SEED_BYTES, DigestPart, Sketch, checked_seed

SlotFactors = tuple[Tensor, Tensor | None]


class LayerwiseSketch(Sketch):
    """P_l = [U_l | Q_l] for each fold: the learned directions U_l (columns x any number up to the rank) and, for the
    rest of the rank, probes Q_l from the seed. `learned` is None for a fold without learned directions, such as
    tensors sent whole."""

    def __init__(
        self,
        folds: Sequence[Fold],
        learned: Sequence[Tensor | None],
        seed: int,
        *,
        isotropic: bool = False,
    ) -> None:
        super().__init__(sum(fold.size for fold in folds), max(fold.stop for fold in folds))
        checked_seed(seed)
        self._folds = tuple(folds)
        self._learned = sum(known.nbytes for known in learned if known is not None)
        self._probed = False
        self._bases: list[Tensor | None] = []
        for index, (fold, known) in enumerate(zip(folds, learned, strict=True)):
            _check(fold, known)
            if fold.whole:
                self._bases.append(None)
                continue
            basis = torch.empty(fold.columns, 0) if known is None else known
            missing = fold.rank - basis.shape[1]
            if missing:
                # Layers of one shape must not get the same probes.
                own_seed = int(PublicStream(seed, Purpose.LAYERS, index).uint64(1)[0])
                # Computed in float64 and then rounded, so that other machines most likely get the same probes.
                fresh = probes(own_seed, missing, basis.double())
                if isotropic:
                    fresh = fresh * probe_length(fold, basis.shape[1])
                basis = torch.cat([basis, fresh.to(basis)], dim=1)
                self._probed = True
            self._bases.append(basis)

    @property
    def folds(self) -> tuple[Fold, ...]:
        """How the vector is cut into matrices."""
        return self._folds

    @property
    def bases(self) -> tuple[Tensor | None, ...]:
        """P_l of each fold; None where the tensor is sent whole."""
        return tuple(self._bases)

    @property
    def description_bytes(self) -> int:
        return self._learned + (SEED_BYTES if self._probed else 0)

    def row_norms_squared(self) -> Tensor:
        norms = torch.ones(self.shape[1], dtype=torch.float64)
        for fold, basis in zip(self._folds, self._bases, strict=True):
            if basis is not None:
                fold.matrix(norms)[:] = basis.double().square().sum(dim=1).cpu()
        return norms

    def forward_rows(self, rows: Tensor) -> Tensor:
        result = rows.new_empty(len(rows), self.shape[0])
        end = 0
        for fold, basis in zip(self._folds, self._bases, strict=True):
            piece = rows[:, fold.start : fold.stop]
            if basis is not None:
                piece = (piece.reshape(-1, fold.columns) @ basis.to(rows)).view(-1, fold.size)
            result[:, end : end + fold.size] = piece
            end += fold.size
        return result

    def of_factors(
        self,
        pieces: Sequence[SlotFactors],
        product: Callable[[Tensor, int, Tensor], Tensor] | None = None,
    ) -> list[SlotFactors]:
        """Sketch n rows that are given fold by fold: each fold either as the factors (b, a) of outer products b_i
        a_i^T, or as (dense rows, None).

        (b a^T) P = b (P^T a)^T, so the sketch of an outer product is again an outer product. `product(a, index of the
        fold, P)`, if given, computes a P, for example from a cache.
        """
        if len(pieces) != len(self._folds):
            raise ValueError(
                f"The sketch has {len(self._folds)} folds, and the rows have {len(pieces)} pieces."
            )
        made: list[SlotFactors] = []
        for index, (left, right) in enumerate(pieces):
            fold, basis = self._folds[index], self._bases[index]
            if basis is None:
                made.append((left, right))
            elif right is None:
                short = left.reshape(-1, fold.columns) @ basis.to(left)
                made.append((short.view(len(left), fold.size), None))
            elif product is not None:
                made.append((left, product(right, index, basis)))
            else:
                made.append((left, right @ basis.to(right)))
        return made

    def adjoint_rows(self, rows: Tensor) -> Tensor:
        result = rows.new_empty(len(rows), self.shape[1])
        end = 0
        for fold, basis in zip(self._folds, self._bases, strict=True):
            piece = rows[:, end : end + fold.size]
            if basis is not None:
                piece = (piece.reshape(-1, fold.rank) @ basis.to(rows).T).view(len(rows), -1)
            result[:, fold.start : fold.stop] = piece
            end += fold.size
        return result

    def digest_parts(self) -> Iterable[DigestPart]:
        for fold, basis in zip(self._folds, self._bases, strict=True):
            yield from (fold.start, fold.rows, fold.columns, fold.rank)
            yield "whole" if basis is None else basis


def probe_length(fold: Fold, learned: int) -> float:
    """Return the length of isotropic probes if there are this many learned directions."""
    probed = fold.rank - learned
    return math.sqrt((fold.columns - learned) / probed) if probed else 1.0


def _check(fold: Fold, known: Tensor | None) -> None:
    room = 0 if fold.whole else fold.rank
    if known is not None and (known.shape[0] != fold.columns or known.shape[1] > room):
        raise ValueError(
            f"The tensor at {fold.start} can have up to {room} learned directions of {fold.columns:,} numbers, "
            f"not a matrix of shape {tuple(known.shape)}: keep fewer, or learn from this fold."
        )


def probes(seed: int, count: int, basis: Tensor) -> Tensor:
    """Return `count` orthonormal columns (d x count), orthogonal to the orthonormal columns of `basis` (d x r, r may
    be 0).

    They have the device and dtype of the basis, and are uniformly distributed in its orthogonal complement.
    """
    checked_seed(seed)
    d, rank = basis.shape
    if not 0 <= count <= d - rank:
        raise ValueError(
            f"{rank} learned directions in {d:,} dimensions leave room for 0 to {d - rank:,} probes, "
            f"not {count:,}: make the sketch smaller."
        )
    rows = torch.empty(count, d, dtype=basis.dtype, device=basis.device)
    for i in range(count):
        rows[i] = torch.from_numpy(PublicStream(seed, Purpose.PROBES, i).gaussian(d))
    # Two rounds of projection and CholeskyQR: the second removes the errors that cancellation leaves in the first.
    for _ in range(2):
        rows = orthonormalise(rows - (rows @ basis) @ basis.T)
    return rows.T
