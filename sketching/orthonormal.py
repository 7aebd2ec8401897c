"""A sketch held as a d x k matrix with orthonormal columns: the learned directions, or probes.

S S^T is then the projection on their span: `adjoint(forward(x))` is the best approximation of x in it, and
noise on the sketch has the same energy after `adjoint`, sigma^2 k instead of sigma^2 d (DOME, Lemma 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from sketching.fingerprint import Part
from sketching.sketch import SEED_BYTES, Sketch


class OrthonormalSketch(Sketch):
    """S = `basis`, d x k. `seeded` says that the other side makes it from a seed, so it costs only that.

    The matrix is neither copied nor checked (a check costs more than a sketch): take it from `probes`,
    `StreamingPCA` or `orthonormalise`, and do not write into it.
    """

    def __init__(self, basis: Tensor, *, seeded: bool = False) -> None:
        if basis.ndim != 2:
            raise ValueError(f"A basis is a d x k matrix, not of shape {tuple(basis.shape)}.")
        d, k = basis.shape
        super().__init__(k, d)
        self._basis = basis
        self._seeded = seeded

    @property
    def basis(self) -> Tensor:
        return self._basis

    @property
    def description_bytes(self) -> int:
        return SEED_BYTES if self._seeded else self._basis.numel() * self._basis.element_size()

    def row_norms_squared(self) -> Tensor:
        return self._basis.double().square().sum(dim=1).cpu()

    def _forward(self, rows: Tensor) -> Tensor:
        return rows @ self._basis.to(rows)

    def _adjoint(self, rows: Tensor) -> Tensor:
        return rows @ self._basis.to(rows).T

    def _parts(self) -> Iterable[Part]:
        return (self._basis,)
