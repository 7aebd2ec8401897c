"""Folding: how the tensors of a model are viewed as matrices, and which of them are sketched.

A weight of shape (o, i, ...) is folded to a matrix with o rows of i * ... inputs, which is how a convolution
multiplies it. A layer-wise sketch shortens each row to `rank` numbers. Vectors and small tensors are sent whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

TensorSpan = tuple[tuple[int, ...], int, int]
"""Shape, start and stop of a tensor in the flat vector."""


@dataclass(frozen=True)
class Fold:
    """vector[start:stop], viewed as a matrix of `rows` x `columns`. `rank` numbers per row are sent; if the tensor is
    sent whole, `rank` is `columns`."""

    start: int
    rows: int
    columns: int
    rank: int

    @property
    def stop(self) -> int:
        """The index behind the tensor's last number."""
        return self.start + self.rows * self.columns

    @property
    def whole(self) -> bool:
        """Whether the tensor is sent whole."""
        return self.rank == self.columns

    @property
    def size(self) -> int:
        """How many numbers are sent."""
        return self.rows * self.rank

    def matrix(self, vector: Tensor) -> Tensor:
        """Return this tensor of a flat vector, as a view of `rows` x `columns`."""
        return vector[self.start : self.stop].view(self.rows, self.columns)


def folds_of_rank(
    layout: Sequence[TensorSpan], rank: int, whole_up_to: int = 1024
) -> tuple[Fold, ...]:
    """Fold every matrix with `rank` numbers per row. Vectors, tensors of at most `whole_up_to` numbers and matrices
    with at most `rank` columns are sent whole."""
    if rank < 1:
        raise ValueError(f"A layer-wise sketch keeps at least 1 number per row, not {rank}.")
    folds = []
    end = 0
    for shape, start, stop in layout:
        if start != end or stop - start != math.prod(shape):
            raise ValueError(
                f"The tensor of shape {shape} cannot be at {start}:{stop}: the layout must list all "
                "tensors of the vector in order, without gaps."
            )
        end = stop
        rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, stop - start)
        whole = len(shape) < 2 or stop - start <= whole_up_to or columns <= rank
        folds.append(Fold(start, rows, columns, columns if whole else rank))
    return tuple(folds)


def folds_of_size(
    layout: Sequence[TensorSpan], size: int, whole_up_to: int = 1024
) -> tuple[Fold, ...]:
    """Fold with the largest common rank for which at most `size` numbers are sent in total."""
    low, high = 1, max(math.prod(shape[1:]) for shape, _, _ in layout)
    smallest = _size(folds_of_rank(layout, 1, whole_up_to))
    if size < smallest:
        raise ValueError(
            f"A layer-wise sketch of this model has at least {smallest:,} numbers, not {size:,}: "
            "raise the size, or lower whole_up_to."
        )
    while low < high:
        middle = (low + high + 1) // 2
        if _size(folds_of_rank(layout, middle, whole_up_to)) <= size:
            low = middle
        else:
            high = middle - 1
    return folds_of_rank(layout, low, whole_up_to)


def _size(folds: Sequence[Fold]) -> int:
    return sum(fold.size for fold in folds)
