"""The rows of a block of privacy units as data: dense, or as factors from which they follow.

The gradient of a linear layer's weight is, for each example, an outer product b a^T of a gradient and an input. Where
rows are rounded as a sum (`skellam_ring`), nobody needs the products themselves: norms and weighted sums follow from
the factors. A mechanism computes both here, in float64, from numbers alone, so nothing that a strategy says about norms
is believed.

**What floating point can do** (u = 2^-53, the rounding of one operation). A sum of n products in float64, in any order
and with or without fused operations, is wrong by at most g(n) = n u / (1 - n u) times the sum of their sizes (Higham
2002, section 3.1). So, for rows of k numbers that are float32 or come from float32 factors (their squares neither
overflow nor vanish):

- a norm is wrong by at most (k + 8) u of itself, and so a row of weight min(1, C / norm) has a true norm of at most C
  (1 + 2 (k + 8) u);
- the sum of n weighted rows is wrong, in L2, by at most g(n + 2) times the sum of the n norms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.mechanisms.unsafe import UnsafeUpdateError

if TYPE_CHECKING:
    import torch

UNIT_ROUNDOFF = 2.0**-53
_AT_ONCE = 1 << 20  # numbers in float64: what is worked on stays in the caches


@dataclass(frozen=True, eq=False)
class Factors:
    """n pieces of rows: left_i right_i^T, flattened; or left_i itself, where there is no right."""

    left: NDArray[np.floating]
    right: NDArray[np.floating] | None = None

    @property
    def width(self) -> int:
        inputs = 1 if self.right is None else self.right.shape[1]
        return int(self.left.shape[1] * inputs)

    def cut(self, part: slice) -> Factors:
        return Factors(self.left[part], None if self.right is None else self.right[part])

    def norms_squared(self) -> NDArray[np.float64]:
        squared = _squared(self.left)
        return squared if self.right is None else squared * _squared(self.right)

    def weighted_sum(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        left = self.left * weights[:, None]
        if self.right is None:
            return np.asarray(left.sum(axis=0))
        # By torch, whose threads the runtime chooses: numpy's own, as many as cores, made this 40 times as slow on busy
        # ones.
        import torch

        right = torch.from_numpy(_wide(self.right))
        return (torch.from_numpy(left).T @ right).numpy().reshape(-1)

    def dense(self) -> NDArray[np.float64]:
        left = _wide(self.left)
        if self.right is None:
            return left
        return (left[:, :, None] * _wide(self.right)[:, None, :]).reshape(len(left), self.width)


@dataclass(frozen=True, eq=False)
class Rows:
    """n rows, each of pieces that lie side by side."""

    pieces: tuple[Factors, ...]

    def __post_init__(self) -> None:
        sizes = {
            len(x) for piece in self.pieces for x in (piece.left, piece.right) if x is not None
        }
        if len(sizes) != 1:
            raise UnsafeUpdateError("the pieces of rows are not of the same units.")

    @classmethod
    def of(cls, rows: torch.Tensor) -> Rows:
        """Dense ones."""
        return cls((Factors(rows.detach().cpu().numpy()),))

    def __len__(self) -> int:
        return len(self.pieces[0].left)

    @property
    def width(self) -> int:
        return sum(piece.width for piece in self.pieces)

    def split(self, counts: Sequence[int]) -> Iterator[Rows]:
        """So many rows each, in order."""
        end = 0
        for count in counts:
            start, end = end, end + count
            yield self._cut(slice(start, end))

    def norms(self) -> NDArray[np.float64]:
        """Not finite where a row is not."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.sqrt(sum(piece.norms_squared() for piece in self.pieces)))

    def finite(self) -> Rows:
        """With zeros in the place of rows that are not finite: each is a unit that says nothing, and the others stay as
        they are."""
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
        """The sum of all rows, each times min(1, C / its norm); refuses nan and inf."""
        total = np.zeros(self.width)
        for block in self.blocks():
            part = block._widened()
            norms = part.norms()
            if not np.isfinite(norms).all():
                raise UnsafeUpdateError(
                    "the update holds nan or inf; nothing was released: lower the learning rate or check the data."
                )
            weights = clip_weights(norms, clip)
            total += np.concatenate([piece.weighted_sum(weights) for piece in part.pieces])
        return total

    def blocks(self, numbers: int = _AT_ONCE) -> Iterator[Rows]:
        """The rows in blocks whose stored numbers are about so many."""
        stored = sum(
            piece.left.shape[1] + (0 if piece.right is None else piece.right.shape[1])
            for piece in self.pieces
        )
        at_once = max(1, numbers // stored)
        for start in range(0, len(self), at_once):
            yield self._cut(slice(start, start + at_once))

    def dense(self) -> NDArray[np.float64]:
        return np.concatenate([piece.dense() for piece in self.pieces], axis=1)

    def _widened(self) -> Rows:
        """In float64, once for all that follows."""
        pieces = (
            Factors(_wide(piece.left), None if piece.right is None else _wide(piece.right))
            for piece in self.pieces
        )
        return Rows(tuple(pieces))

    def _cut(self, part: slice) -> Rows:
        return Rows(tuple(piece.cut(part) for piece in self.pieces))


def clip_weights(norms: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    """min(1, C / norm) of each."""
    return np.asarray(clip / np.maximum(norms, clip))


def allowance(rows: int, dim: int) -> float:
    """What floating point may add to the change that one of so many rows makes in their scaled sum, in units of s C.

    Of the row itself: its weight, 2 (k + 8) u. Of both neighbouring sums, which hold up to n rows of norm C (1 +
    2^-20): adding up, n g(n + 2); then scaling, the shift by a threshold before `floor`, and the rotation of small
    rings, which work on a vector of norm n C at most and are wrong by less than 2^13 u = 2^-40 of it (a cosine
    transform of 2^40 numbers by 40 u times a small constant: Higham 2002, section 24.1).
    """
    sums = rows * ((rows + 2) * UNIT_ROUNDOFF / (1.0 - min(rows + 2, 2**40) * UNIT_ROUNDOFF))
    turned = rows * 2.0**-40
    return 2.0 * (dim + 8) * UNIT_ROUNDOFF + 2.0 * (1.0 + 2.0**-20) * (sums + turned)


def _wide(matrix: NDArray[np.floating]) -> NDArray[np.float64]:
    return matrix.astype(np.float64, copy=False)


def _squared(matrix: NDArray[np.floating]) -> NDArray[np.float64]:
    wide = _wide(matrix)
    return np.asarray(np.einsum("ij,ij->i", wide, wide))


def threshold_rounded(
    values: NDArray[np.float64], thresholds: NDArray[np.float64]
) -> NDArray[np.int64]:
    """floor(x + t): up with probability x - floor(x), for uniform t. With equal t, |floor(x + t) - floor(y + t)| <=
    ceil(|x - y|)."""
    largest = float(np.max(np.abs(values), initial=0.0))
    if not largest < 2.0**62:  # also for nan
        raise UnsafeUpdateError(
            "the sum of the rows does not fit an integer; nothing was released."
        )
    return np.floor(values + thresholds).astype(np.int64)


def sum_bound(dim: int, scaled_clip: float, rows: int, changed: int) -> float:
    """D2 of a sum of up to `rows` rows that is rounded once, `changed` of which are replaced by zeros.

    The shift of a small number by a threshold is wrong by up to u, on both sides: 2 u sqrt(k), which 2^-50 covers, and
    the rounding here.
    """
    return changed * scaled_clip * (1.0 + allowance(rows, dim)) + math.sqrt(dim) * (1.0 + 2.0**-50)
