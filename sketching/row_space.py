"""The principal directions of a matrix whose rows arrive in parts. They are exact and need the memory of one square
matrix.

A QR decomposition replaces all rows seen so far by as many rows as there are columns. These have the same singular
values and right singular vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEGLIGIBLE = 1e-6  # singular values below this share of the largest count as rounding errors


class PrincipalDirections:
    """The principal directions of all rows that were passed to `feed`."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows: Tensor | None = None

    def feed(self, rows: Tensor) -> None:
        """Add rows, a matrix of shape (any number, columns)."""
        if rows.ndim != 2 or rows.shape[1] != self._columns:
            raise ValueError(
                f"Rows of {self._columns:,} numbers are expected, not shape {tuple(rows.shape)}."
            )
        rows = rows.double()
        if self._rows is not None:
            rows = torch.cat([self._rows, rows])
        self._rows = torch.linalg.qr(rows, mode="r").R if len(rows) > self._columns else rows

    def top(self, count: int, negligible: float = NEGLIGIBLE) -> tuple[Tensor, Tensor]:
        """Return at most `count` orthonormal directions as columns, and their singular values in descending order.
        There are fewer if the rows span fewer dimensions."""
        if self._rows is None:
            return torch.empty(self._columns, 0).double(), torch.empty(0).double()
        # For a few long rows, the SVD of a small triangular matrix takes a third of the time.
        basis, triangle = torch.linalg.qr(self._rows.T)
        _, values, directions = torch.linalg.svd(triangle.T, full_matrices=False)
        kept = int((values[:count] > negligible * values[0]).sum())
        return basis @ directions[:kept].T, values[:kept]
