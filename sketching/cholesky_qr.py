"""CholeskyQR: orthonormal rows from a few long vectors, by the Cholesky factor of their Gram matrix.

It reads the vectors twice and consists of matrix products, while the speed of a Householder QR of a tall matrix is
limited by memory. The Gram matrix is in float64 and is summed over blocks of columns in a fixed order. So on one
machine the result depends only on the input and on the number of threads of the linear algebra library. One pass
leaves an error of (condition number)^2 x 1e-16 plus rounding. Two passes (CholeskyQR2) leave only rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 1 << 20  # numbers that are converted to float64 at a time: 8 MB


def gram(rows: Tensor, other: Tensor | None = None) -> Tensor:
    """Return rows @ other^T in float64 on the CPU (`other` is `rows` unless given)."""
    right = rows if other is None else other
    product = torch.zeros(len(rows), len(right), dtype=torch.float64, device=rows.device)
    for part in column_blocks(rows, _BLOCK):
        left = rows[:, part].double()
        product += left @ (left if other is None else right[:, part].double()).T
    return product.cpu()


def orthonormalise(rows: Tensor, out: Tensor | None = None) -> Tensor:
    """Return one CholeskyQR pass: L^-1 rows, where L L^T is the Gram matrix. The result has the same span. It is in new
    memory, or in `out`, which may be `rows`.

    Raises if the rows are linearly dependent up to the rounding of their Gram matrix.
    """
    products = gram(rows)
    factor, failed = torch.linalg.cholesky_ex(products)
    remaining = factor.diagonal().square()
    # Comparisons with NaN are false, so numbers that are not finite are refused here as well.
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
    """Return the share of a row's energy (squared norm) that rounding errors may leave if the row depends on the rows
    before it.

    L_ii^2 is the energy of row i outside the span of the rows before it, which is 0 for a dependent row. An entry of
    the Gram matrix is a sum of d products. Its error is at most d u |r_i| |r_j| in any order of summation, with u =
    2^-53. Factoring k rows adds an error of the same form with k instead of d. For r_i = sum_j x_j r_j these errors
    change L_ii^2 by at most (d + k) u (|r_i| + sum_j |x_j| |r_j|)^2, which is 4 (d + k) u |r_i|^2 for a row that
    occurs twice. Rounding errors rarely have the same sign, so the true error grows more like the square root of d +
    k. The difference leaves room for larger x_j.
    """
    count, d = rows.shape
    return 2.0 * (d + count) * torch.finfo(torch.float64).eps  # eps is 2 u


def column_blocks(rows: Tensor, size: int) -> list[slice]:
    """Return slices of the columns. All rows of one slice together have about `size` numbers."""
    width = max(1, size // max(1, len(rows)))
    return [slice(start, start + width) for start in range(0, rows.shape[1], width)]
