"""The rows of a block of privacy units: stored densely, or as factors from which the rows can be computed.

For each example, the gradient of a linear layer's weight is an outer product b a^T of a gradient b and an input a. If
only the sum of the rows is rounded (`skellam_ring`), the products themselves are not needed: norms and weighted sums
can be computed from the factors. A mechanism computes both here, in float64. It does not rely on any norm that a
strategy reports.

**Floating-point errors** (u = 2^-53 is the rounding error of one operation). A sum of n products in float64, in any
order and with or without fused operations, has an error of at most g(n) = n u / (1 - n u) times the sum of the
absolute values of the products (Higham 2002, section 3.1). For rows of k numbers that are float32 or come from float32
factors, squares neither overflow nor vanish. Therefore:

- A norm has a relative error of at most (k + 8) u. A row with weight min(1, C / norm) then has a true norm of at most
  C (1 + 2 (k + 8) u). A norm is added up from the row's own numbers in an order that no other row changes, so a row
  that is left out changes no other weight.
- The sum of n weighted rows has an L2 error of at most g(n + 2) times the sum of the n norms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsketch.errors import UnsafeUpdateError

if TYPE_CHECKING:
    import torch

UNIT_ROUNDOFF = 2.0**-53
_AT_ONCE = 1 << 20  # float64 numbers per step, few enough to stay in the caches


@dataclass(frozen=True, eq=False)
class Factors:
    """One piece of each of n rows: left_i right_i^T, flattened; or left_i itself if `right` is None."""

    left: NDArray[np.floating]
    right: NDArray[np.floating] | None = None

    @property
    def width(self) -> int:
        """How many numbers the piece has in each row."""
        inputs = 1 if self.right is None else self.right.shape[1]
        return int(self.left.shape[1] * inputs)

    def cut(self, part: slice) -> Factors:
        """Return the piece of these rows."""
        return Factors(self.left[part], None if self.right is None else self.right[part])

    def norms_squared(self) -> NDArray[np.float64]:
        """Return the squared L2 norm of the piece, for each row."""
        squared = _squared(self.left)
        return squared if self.right is None else squared * _squared(self.right)

    def weighted_sum(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum over the rows, each times its weight."""
        left = self.left * weights[:, None]
        if self.right is None:
            return np.asarray(left.sum(axis=0))
        # torch uses the number of threads that the runtime has chosen. numpy starts one per core, which made this 40
        # times as slow on a busy machine.
        import torch

        right = torch.from_numpy(_float64(self.right))
        return (torch.from_numpy(left).T @ right).numpy().reshape(-1)

    def dense(self) -> NDArray[np.float64]:
        """Return the piece as a matrix with one row per unit."""
        left = _float64(self.left)
        if self.right is None:
            return left
        return (left[:, :, None] * _float64(self.right)[:, None, :]).reshape(len(left), self.width)


@dataclass(frozen=True, eq=False)
class Rows:
    """n rows. Each row is the concatenation of its pieces."""

    pieces: tuple[Factors, ...]

    def __post_init__(self) -> None:
        sizes = {
            len(x) for piece in self.pieces for x in (piece.left, piece.right) if x is not None
        }
        if len(sizes) != 1:
            raise UnsafeUpdateError("the pieces of the rows do not belong to the same units.")

    @classmethod
    def of(cls, rows: torch.Tensor) -> Rows:
        """Return rows that are stored densely."""
        return cls((Factors(rows.detach().cpu().numpy()),))

    def __len__(self) -> int:
        return len(self.pieces[0].left)

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return sum(piece.width for piece in self.pieces)

    def split(self, counts: Sequence[int]) -> Iterator[Rows]:
        """Yield consecutive groups of rows, with the given number of rows in each."""
        end = 0
        for count in counts:
            start, end = end, end + count
            yield self._cut(slice(start, end))

    def select(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return the chosen rows."""
        return Rows(
            tuple(
                Factors(piece.left[chosen], None if piece.right is None else piece.right[chosen])
                for piece in self.pieces
            )
        )

    def norms(self) -> NDArray[np.float64]:
        """Return the L2 norm of every row. It is not finite if the row is not."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.sqrt(sum(piece.norms_squared() for piece in self.pieces)))

    def finite(self) -> Rows:
        """Replace rows that are not finite by zeros, as if their unit contributed nothing. The other rows do not
        change."""
        fine = np.isfinite(self.norms())[:, None]
        if fine.all():
            return self
        return Rows(
            tuple(
                Factors(
                    np.where(fine, piece.left, 0.0),
                    None if piece.right is None else np.where(fine, piece.right, 0.0),
                )
                for piece in self.pieces
            )
        )

    def clipped_sum(self, clip: float) -> NDArray[np.float64]:
        """Return the sum of all rows, each multiplied by min(1, C / its norm). Raises for nan and inf."""
        total = np.zeros(self.width)
        for block in self.blocks():
            part = block._in_float64()
            norms = part.norms()
            if not np.isfinite(norms).all():
                raise UnsafeUpdateError(
                    "the update contains nan or inf; nothing was released: lower the learning rate or check the data."
                )
            weights = clip_weights(norms, clip)
            total += np.concatenate([piece.weighted_sum(weights) for piece in part.pieces])
        return total

    def blocks(self, size: int = _AT_ONCE) -> Iterator[Rows]:
        """Yield the rows in blocks that each store about this many numbers."""
        stored = sum(
            piece.left.shape[1] + (0 if piece.right is None else piece.right.shape[1])
            for piece in self.pieces
        )
        at_once = max(1, size // stored)
        for start in range(0, len(self), at_once):
            yield self._cut(slice(start, start + at_once))

    def dense(self) -> NDArray[np.float64]:
        """Return the rows as a matrix."""
        return np.concatenate([piece.dense() for piece in self.pieces], axis=1)

    def _in_float64(self) -> Rows:
        """Return a copy in float64, so that later steps need not convert again."""
        pieces = (
            Factors(_float64(piece.left), None if piece.right is None else _float64(piece.right))
            for piece in self.pieces
        )
        return Rows(tuple(pieces))

    def _cut(self, part: slice) -> Rows:
        return Rows(tuple(piece.cut(part) for piece in self.pieces))


def clip_weights(norms: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    """Return min(1, C / norm) for every norm."""
    return np.asarray(clip / np.maximum(norms, clip))


def allowance(rows: int, dim: int) -> float:
    """Return how much floating-point errors can add to the change that one row makes in the scaled sum of n = `rows`
    rows, in units of s C (scale times clip).

    The error of the row's own weight is 2 (k + 8) u. The other errors occur in both neighbouring sums, which have up
    to n rows of norm C (1 + 2^-20). Adding the rows up has an error of n g(n + 2). After that come the scaling, the
    shift by a threshold before `floor`, and the rotation in small rings. These work on a vector of norm n C at most,
    and their error is less than 2^13 u = 2^-40 of it (for a cosine transform of 2^40 numbers, 40 u times a small
    constant: Higham 2002, section 24.1).
    """
    sums = rows * ((rows + 2) * UNIT_ROUNDOFF / (1.0 - min(rows + 2, 2**40) * UNIT_ROUNDOFF))
    turned = rows * 2.0**-40
    return 2.0 * (dim + 8) * UNIT_ROUNDOFF + 2.0 * (1.0 + 2.0**-20) * (sums + turned)


def _float64(matrix: NDArray[np.floating]) -> NDArray[np.float64]:
    return matrix.astype(np.float64, copy=False)


def _squared(matrix: NDArray[np.floating]) -> NDArray[np.float64]:
    wide = _float64(matrix)
    return np.asarray(np.einsum("ij,ij->i", wide, wide))


def threshold_rounded(
    values: NDArray[np.float64], thresholds: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return floor(x + t). For uniform t this rounds x up with probability x - floor(x). With the same t for two
    numbers,
    |floor(x + t) - floor(y + t)| <= ceil(|x - y|)."""
    largest = float(np.max(np.abs(values), initial=0.0))
    if not largest < 2.0**62:  # also for nan
        raise UnsafeUpdateError(
            "the sum of the rows does not fit an integer; nothing was released."
        )
    return np.floor(values + thresholds).astype(np.int64)


def sum_bound(dim: int, scaled_clip: float, rows: int, changed: int) -> float:
    """Return the L2 sensitivity D2 of a sum of up to `rows` rows that is rounded once, if `changed` of the rows are
    replaced by zeros.

    Adding a threshold to a small number has an error of up to u, in both neighbouring sums. That is 2 u sqrt(k) in
    total. The factor 1 + 2^-50 covers it, and also the rounding of this formula.
    """
    return changed * scaled_clip * (1.0 + allowance(rows, dim)) + math.sqrt(dim) * (1.0 + 2.0**-50)
