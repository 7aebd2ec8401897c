"""Orthonormal rows from a few long vectors, by the Cholesky factor of their Gram matrix.

Reads the vectors twice and works by matrix products, where Householder QR of a tall matrix is bound by memory.
The Gram matrix is float64 and is summed over blocks of columns in a fixed order, so the result on one machine
depends on nothing but the input and the number of threads of the linear algebra library.
One pass leaves an error of (condition number)^2 x 1e-16 plus rounding; two passes (CholeskyQR2) leave rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 1 << 20  # numbers that are widened to float64 at a time: 8 MB


def gram(rows: Tensor, other: Tensor | None = None) -> Tensor:
    """rows @ other^T in float64 on the CPU (`other` is `rows` unless given)."""
    right = rows if other is None else other
    product = torch.zeros(len(rows), len(right), dtype=torch.float64, device=rows.device)
    for part in column_blocks(rows, _BLOCK):
        left = rows[:, part].double()
        product += left @ (left if other is None else right[:, part].double()).T
    return product.cpu()


def orthonormalise(rows: Tensor, out: Tensor | None = None) -> Tensor:
    """One CholeskyQR pass: L^-1 rows, where L L^T is the Gram matrix. Same span, in new memory or in `out`, which may
    be `rows`.

    Rows that are dependent, to within the rounding of their Gram matrix, are refused.
    """
    products = gram(rows)
    factor, failed = torch.linalg.cholesky_ex(products)
    remaining = factor.diagonal().square()
    # NaN is never larger, so numbers that are not finite are refused here as well.
    if failed or not bool((remaining > _rounding(rows) * products.diagonal()).all()):
        raise ValueError(
            f"The {len(rows)} vectors are not linearly independent in floating point: take fewer."
        )
    result = torch.empty_like(rows, memory_format=torch.contiguous_format) if out is None else out
    factor = factor.to(rows.device)
    for part in column_blocks(rows, _BLOCK):
        result[:, part] = torch.linalg.solve_triangular(
            factor, rows[:, part].double(), upper=False
        ).to(rows.dtype)
    return result


def _rounding(rows: Tensor) -> float:
    """The share of a row's energy that rounding may leave of it where exact arithmetic would leave nothing.

    L_ii^2 is the energy of row i outside the rows before it: 0 for a dependent row. An entry of the Gram matrix is a
    sum of d products, wrong by at most d u |r_i| |r_j| in any order of summation, with u = 2^-53, and factoring k rows
    adds an error of the same form with k in the place of d. For r_i = sum_j x_j r_j these errors change L_ii^2 by at
    most (d + k) u (|r_i| + sum_j |x_j| |r_j|)^2, which is 4 (d + k) u |r_i|^2 for a row that is there twice. Roundings
    rarely agree in sign, so the true error is nearer to the root of d + k, and the rest is room for larger x_j.
    """
    count, d = rows.shape
    return 2.0 * (d + count) * torch.finfo(torch.float64).eps  # eps is 2 u


def column_blocks(rows: Tensor, numbers: int) -> list[slice]:
    """Slices of the columns such that a block of all rows holds about `numbers` numbers."""
    width = max(1, numbers // max(1, len(rows)))
    return [slice(start, start + width) for start in range(0, rows.shape[1], width)]
