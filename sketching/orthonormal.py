"""A sketch held as a d x k matrix with orthonormal columns: the learned directions, or probes.

S S^T is then the projection on their span: `adjoint(forward(x))` is the best approximation of x in it, and
noise on the sketch has the same energy after `adjoint`, sigma^2 k instead of sigma^2 d (DOME, Lemma 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from sketching.cholesky_qr import gram
from sketching.fingerprint import Part
from sketching.sketch import SEED_BYTES, Sketch

TOLERANCE = 1e-4  # a float32 basis that is used with care is far below


class OrthonormalSketch(Sketch):
    """S = `basis`, d x k. `seeded` says that the other side makes it from a seed, so it costs only that.

    The matrix is not copied: do not write into it.
    """

    def __init__(self, basis: Tensor, *, seeded: bool = False) -> None:
        if basis.ndim != 2:
            raise ValueError(f"A basis is a d x k matrix, not of shape {tuple(basis.shape)}.")
        d, k = basis.shape
        super().__init__(k, d)
        error = deviation_from_orthonormal(basis)
        if not error <= TOLERANCE:
            raise ValueError(
                f"The columns of the basis are orthonormal only to {error:.1e}: orthonormalise them "
                "(sketching.cholesky_qr) before they become a sketch."
            )
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


def deviation_from_orthonormal(basis: Tensor) -> float:
    """The largest entry of |S^T S - I|, from a float64 Gram matrix; 0 if there are no columns."""
    product = gram(basis.T)
    product.diagonal().sub_(1.0)
    return float(product.abs().max()) if product.numel() else 0.0
