"""L2 clipping of torch vectors and of per-example gradients: the bound C that every release relies on.

The result's norm, computed in float64, is at most C: not about C. Vectors with nan or inf are refused on the device,
because they have no norm to bound and nothing sensible to send. The only module of this package that imports torch.
"""

from __future__ import annotations

import math

import torch

from fedsketch.privacy.mechanisms.unsafe import UnsafeUpdateError

__all__ = ["UnsafeUpdateError", "clip", "clip_rows", "finite_rows"]

# Rounding moves a float32 entry by at most 2^-22 of itself here (two factors, two products), so the norm by no more;
# the margin covers that, and the rounding of a float64 norm of 1e6 entries.
_MARGIN = {torch.float64: 2.0**-40, torch.float32: 2.0**-21}
_SMALLEST_CLIP = 1e-30  # below, entries become subnormal and the margin says nothing


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
            "the update holds nan or inf, or is too large for a norm; nothing was released: lower the learning rate or check the data."
        )


def clip(vector: torch.Tensor, max_norm: float) -> torch.Tensor:
    """vector * min(1, C / ||vector||), of the same type and shape; unchanged if it already fits."""
    return clip_rows(vector.reshape(1, -1), max_norm).reshape(vector.shape)


def clip_rows(matrix: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Every row of a (rows, numbers) matrix clipped to C by itself: one per-example gradient per row."""
    if matrix.ndim != 2:
        raise ValueError(
            f"clip_rows takes a matrix, one vector per row, not {matrix.ndim} dimensions."
        )
    if matrix.numel() == 0:
        return matrix
    # In float64 a float32 of 1e38 squares without overflow.
    norms = torch.linalg.vector_norm(matrix, dim=1, dtype=torch.float64)
    _check(matrix, norms, max_norm)
    fits = norms <= max_norm
    if bool(fits.all()):
        return matrix
    target = max_norm * (1.0 - _MARGIN[matrix.dtype])
    # In two steps of the square root: the factor of a row of 1e38 would be subnormal in float32, and every row must be
    # treated alike, or one example's size would show in the rounding of the others.
    root = torch.where(fits, 1.0, torch.sqrt(target / norms)).to(matrix.dtype)[:, None]
    return matrix * root * root


def finite_rows(matrix: torch.Tensor) -> torch.Tensor:
    """The rows with those that hold nan or inf as zeros: each is a unit that says nothing, and the others stay as they
    are."""
    return matrix.masked_fill(~torch.isfinite(matrix).all(dim=1, keepdim=True), 0.0)
