"""How the tensors of a model become matrices, and which of them are sketched.

A weight of shape (o, i, ...) is folded to o rows of i * ... inputs, as a convolution multiplies it; a layer-wise sketch
shortens the rows to `rank` numbers. Vectors and small tensors are sent whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

Slot = tuple[
    tuple[int, ...], int, int
]  # shape, start, stop: where a tensor lies in the flat vector


@dataclass(frozen=True)
class Fold:
    """vector[start:stop] as `rows` x `columns`; `rank` numbers a row are sent, `columns` if it is sent whole."""

    start: int
    rows: int
    columns: int
    rank: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns

    @property
    def whole(self) -> bool:
        return self.rank == self.columns

    @property
    def size(self) -> int:
        """The numbers sent."""
        return self.rows * self.rank

    def matrix(self, vector: Tensor) -> Tensor:
        """This tensor of a flat vector, as a view of `rows` x `columns`."""
        return vector[self.start : self.stop].view(self.rows, self.columns)


def folds_of_rank(layout: Sequence[Slot], rank: int, whole_up_to: int = 1024) -> tuple[Fold, ...]:
    """Every matrix with `rank` numbers a row; whole are vectors, tensors of at most `whole_up_to` numbers, and
    those with no more than `rank` columns."""
    if rank < 1:
        raise ValueError(f"A layer-wise sketch keeps at least 1 number a row, not {rank}.")
    folds = []
    end = 0
    for shape, start, stop in layout:
        if start != end or stop - start != math.prod(shape):
            raise ValueError(
                f"The tensor of shape {shape} cannot lie in {start}:{stop}: the layout must list all "
                "tensors of the vector in order, without gaps."
            )
        end = stop
        rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, stop - start)
        whole = len(shape) < 2 or stop - start <= whole_up_to or columns <= rank
        folds.append(Fold(start, rows, columns, columns if whole else rank))
    return tuple(folds)


def folds_of_size(layout: Sequence[Slot], size: int, whole_up_to: int = 1024) -> tuple[Fold, ...]:
    """The largest common rank with which no more than `size` numbers are sent in all."""
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
