"""Streaming PCA: the directions in which the gradients seen so far have most of their energy (squared norm), updated
exactly.

The state represents C = U diag(lambda) U^T. An update computes the eigenpairs of C' = decay C + sum_j g_j g_j^T. Write
the matrix G of new vectors as G = U W + Q Z, with Q orthonormal and orthogonal to U (two Gram-Schmidt passes). Then
all of C' is in the span of [U | Q], where it is a small matrix. Its eigenproblem is solved in float64; after that
comes one product of size d x (k + m) x k. This replaces the QR in DOME's UpdateSketch, because the column norms of its
R are not eigenvalues. The first update is not a special case.

Replay: a state is a function of the vectors that the PCA received. On one machine, with the same versions and number
of threads, the same updates give bit-equal U. On other machines the last bits may differ; `fingerprint` detects
this. It is rare if `arithmetic` is float64 and the state is stored in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedsketch.sketching.cholesky_qr import column_blocks, gram, orthonormalise
from fedsketch.sketching.sketch import digest

_REORTHONORMALISE = 128  # after so many updates; in each, float32 loses about 3e-9 of orthogonality
_BLOCK = 1 << 19  # numbers computed at a time, so that both terms of a sum are in the cache


class StreamingPCA:
    """Keeps at most `max_rank` eigenpairs of the decayed sum, in the precision `dtype`. `arithmetic` is the precision
    of the products; by default it is the same.

    To save memory, an update overwrites the directions in place, block by block. It allocates new ones if their number
    grows, or if the old ones were handed out since the last update. So a basis that a caller has never changes.
    """

    def __init__(
        self,
        d: int,
        max_rank: int,
        decay: float = 1.0,
        *,
        dtype: torch.dtype = torch.float32,
        arithmetic: torch.dtype | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        if d < 1 or not 1 <= max_rank <= d or not 0.0 < decay <= 1.0:
            raise ValueError(
                f"A PCA in d dimensions needs 1 <= max_rank <= d and 0 < decay <= 1, not "
                f"max_rank {max_rank}, d {d}, decay {decay}."
            )
        self.max_rank = max_rank
        self.decay = decay
        self._arithmetic = arithmetic or dtype
        # Directions are stored as rows, so that each is contiguous in memory and some can be dropped by a slice.
        self._directions = torch.empty(0, d, dtype=dtype, device=device)
        self._eigenvalues = torch.empty(0, dtype=torch.float64)
        self._updates = 0
        self._lent = False  # whether a caller may have a reference to the directions

    @property
    def basis(self) -> Tensor:
        """U (d x r): orthonormal columns, ordered by descending eigenvalue."""
        self._lent = True
        return self._directions.T

    @property
    def eigenvalues(self) -> Tensor:
        """lambda: float64 of size r, in descending order, on the CPU."""
        return self._eigenvalues

    @property
    def rank(self) -> int:
        """How many directions there are now."""
        return len(self._eigenvalues)

    def update(self, vectors: Tensor) -> None:
        """C' = decay C + sum g g^T for one vector (d,) or all rows of (m, d); keeps the top `max_rank` eigenpairs."""
        rows, known = self._checked(vectors), self._directions
        inside = _coordinates(known, rows)
        fresh = _outside(rows, known, inside, torch.finfo(known.dtype).eps)
        coordinates = torch.cat([inside.double().cpu(), gram(fresh, rows)])
        core = coordinates @ coordinates.T
        core.diagonal()[: self.rank] += self.decay * self._eigenvalues
        values, rotation = torch.linalg.eigh(core)
        values, rotation = values.flip(0), rotation.flip(1)
        # Drop eigenvalues that consist of rounding errors: their directions mean nothing.
        real = int((values > 1e-14 * values[:1].clamp(min=0.0)).sum())
        count = min(self.max_rank, real)
        directions = known
        if self._lent or count > self.rank:
            directions = known.new_empty(count, known.shape[1])
        _combine(rotation[:, :count].T, known, fresh, directions[:count])
        directions = directions[:count]
        self._updates += 1
        if self._updates % _REORTHONORMALISE == 0 and count:
            orthonormalise(directions, out=directions)
        _fix_signs(directions, torch.finfo(known.dtype).eps)
        self._directions, self._lent = directions, False
        self._eigenvalues = values[:count].to(known.dtype).double()

    def state_dict(self) -> dict[str, Any]:
        """Return the directions (r x d), the eigenvalues and the number of updates."""
        self._lent = True
        return {
            "directions": self._directions,
            "eigenvalues": self._eigenvalues,
            "updates": self._updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called, with the same settings."""
        directions, eigenvalues = state["directions"], state["eigenvalues"]
        d = self._directions.shape[1]
        if directions.shape != (len(eigenvalues), d) or len(eigenvalues) > self.max_rank:
            raise ValueError(
                f"A PCA of at most {self.max_rank} directions in {d:,} dimensions cannot load "
                f"{tuple(directions.shape)}: resume with the settings of the saved run."
            )
        self._directions, self._lent = directions.to(self._directions, copy=True), False
        self._eigenvalues = eigenvalues.to(self._eigenvalues, copy=True)
        self._updates = int(state["updates"])

    def fingerprint(self) -> str:
        """Return SHA-256 of everything that the next update depends on."""
        return digest(
            [self.max_rank, self.decay, self._updates, self._directions, self._eigenvalues]
        )

    def _checked(self, vectors: Tensor) -> Tensor:
        d = self._directions.shape[1]
        if vectors.ndim not in (1, 2) or vectors.shape[-1] != d:
            raise ValueError(
                f"This PCA learns from vectors of {d:,} numbers, or rows of them, not from shape "
                f"{tuple(vectors.shape)}."
            )
        rows = vectors.reshape(-1, d).to(self._directions.device, self._arithmetic)
        if not bool(torch.isfinite(rows).all()):
            raise ValueError("A vector for the PCA is not finite: lower the learning rate or clip.")
        return rows


def _outside(rows: Tensor, known: Tensor, inside: Tensor, precision: float) -> Tensor:
    """Return orthonormal rows that span the part of the vectors outside of U. There are none if that part is only
    rounding error (for a U of this precision)."""
    length = float(torch.linalg.vector_norm(rows, dtype=torch.float64))
    rounding = 16.0 * precision * length
    fresh = _orthonormal_span(_without(rows, known, inside), rounding**2)
    # The second pass removes the part of U that cancellation left in the first pass. A direction that loses half of
    # its energy here consisted of rounding errors, so it is not a new direction.
    return _orthonormal_span(_without(fresh, known, _coordinates(known, fresh)), 0.5)


def _coordinates(known: Tensor, rows: Tensor) -> Tensor:
    """Return known @ rows^T in the precision of the rows, without converting all of `known` at once."""
    if known.dtype == rows.dtype:
        return known @ rows.T
    product = rows.new_zeros(len(known), len(rows))
    for part in column_blocks(known, _BLOCK):
        product.addmm_(known[:, part].to(rows), rows[:, part].T)
    return product


def _without(rows: Tensor, known: Tensor, inside: Tensor) -> Tensor:
    """Return rows - inside^T @ known, in the precision of the rows, in new memory."""
    rest = rows.clone()
    for part in column_blocks(known, _BLOCK):
        rest[:, part].addmm_(inside.T, known[:, part].to(rows), alpha=-1)
    return rest


def _orthonormal_span(rows: Tensor, smallest: float) -> Tensor:
    """Return orthonormal rows: those principal directions of the rows that have more than `smallest` energy."""
    values, vectors = torch.linalg.eigh(gram(rows))
    # A float64 Gram matrix cannot represent energies below 1e-16 of its largest.
    floor = max(smallest, 1e-14 * float(values[-1])) if len(values) else smallest
    real = values > floor
    return (vectors[:, real] / values[real].sqrt()).T.to(rows) @ rows


def _fix_signs(directions: Tensor, precision: float) -> None:
    """Make the largest entry of each direction positive, in place: the library may return either sign of an
    eigenvector.

    If a positive and a negative entry are equally large up to rounding, the first of the largest entries is made
    positive.
    """
    if not directions.numel():
        return
    lowest, highest = -directions.amin(dim=1), directions.amax(dim=1)
    flipped = lowest > highest
    margin = 16.0 * precision * torch.maximum(lowest, highest)
    for i in torch.nonzero((lowest - highest).abs() <= margin).flatten().tolist():
        large = directions[i].abs() >= torch.maximum(lowest[i], highest[i]) - margin[i]
        flipped[i] = directions[i, large.nonzero()[0, 0]] < 0
    directions.mul_(torch.where(flipped, -1.0, 1.0).to(directions).unsqueeze(1))


def _combine(rotation: Tensor, known: Tensor, fresh: Tensor, out: Tensor) -> None:
    """Compute rotation @ [known; fresh] into `out`, which may be the first rows of `known`: every block is read before
    it is written."""
    weights = rotation.to(fresh)
    of_known, of_fresh = weights[:, : len(known)], weights[:, len(known) :]
    for part in column_blocks(known if len(known) > len(out) else out, _BLOCK):
        made = of_known @ known[:, part].to(fresh)
        out[:, part] = made.addmm_(of_fresh, fresh[:, part])
