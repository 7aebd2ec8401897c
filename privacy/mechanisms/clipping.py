"""L2 clipping of torch vectors and of per-example gradients. Every release relies on the bound C that it enforces.

The norm of the result, computed in float64, is at most C, not just approximately C. Vectors with nan or inf are
refused on the device, because they have no norm and contain nothing useful. This is the only module of the package
that imports torch at the top.
"""

from __future__ import annotations

import math

import torch

from fedsketch.errors import UnsafeUpdateError

__all__ = ["UnsafeUpdateError", "clip", "clip_rows", "finite_rows"]

# Rounding changes a float32 entry by at most 2^-22 of its value here (two factors, two products), and the norm by no
# more than that. The margin covers this, and the rounding of a float64 norm of 1e6 entries.
_MARGIN = {torch.float64: 2.0**-40, torch.float32: 2.0**-21}
_SMALLEST_CLIP = 1e-30  # below it entries become subnormal, and the margin is not enough


def _check(matrix: torch.Tensor, norms: torch.Tensor, max_norm: float) -> None:
    if matrix.dtype not in _MARGIN:
        raise TypeError(
            f"clipping takes float32 or float64, not {matrix.dtype}: convert the update first."
        )
    if not (max_norm >= _SMALLEST_CLIP and math.isfinite(max_norm)):
        raise ValueError(
            f"the clip must be positive (at least {_SMALLEST_CLIP:g}) and finite, not {max_norm}."
        )
    if not bool(torch.isfinite(norms).all()):
        raise UnsafeUpdateError(
            "the update contains nan or inf, or is too large to compute its norm; nothing was released: "
            "lower the learning rate or check the data."
        )


def clip(vector: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Return vector * min(1, C / ||vector||), with the same type and shape; unchanged if its norm is at most C."""
    return clip_rows(vector.reshape(1, -1), max_norm).reshape(vector.shape)


def clip_rows(matrix: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Clip every row of a (rows, numbers) matrix to C separately, for example one gradient per example."""
    if matrix.ndim != 2:
        raise ValueError(
            f"clip_rows takes a matrix, one vector per row, not {matrix.ndim} dimensions."
        )
    if matrix.numel() == 0:
        return matrix
    # Squaring a float32 of 1e38 does not overflow in float64.
    norms = torch.linalg.vector_norm(matrix, dim=1, dtype=torch.float64)
    _check(matrix, norms, max_norm)
    fits = norms <= max_norm
    if bool(fits.all()):
        return matrix
    target = max_norm * (1.0 - _MARGIN[matrix.dtype])
    # Multiply twice by the square root of the factor, because the factor itself would be subnormal in float32 for a
    # row of 1e38. Every row gets the same treatment; otherwise the size of one example would influence the rounding of
    # the others.
    root = torch.where(fits, 1.0, torch.sqrt(target / norms)).to(matrix.dtype)[:, None]
    return matrix * root * root


def finite_rows(matrix: torch.Tensor) -> torch.Tensor:
    """Replace rows that contain nan or inf by zeros, as if their unit contributed nothing. The other rows do not
    change."""
    return matrix.masked_fill(~torch.isfinite(matrix).all(dim=1, keepdim=True), 0.0)
