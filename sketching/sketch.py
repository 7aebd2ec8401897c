"""What every sketch is: a linear map from R^d to R^k that can be undone approximately by its adjoint.

Written as a d x k matrix S, `forward` is S^T x and `adjoint` is S y. Both are linear, so the sketch of a
sum is the sum of the sketches: that is what lets secure aggregation add sketches that nobody may see.
Nobody else multiplies by S, and large ones are never stored when a seed will do.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor

from fedsketch.sketching.fingerprint import Part, digest

SEED_BYTES = 16  # a seed is a whole number below 2^128
_COLUMN_BLOCK = 1 << 22  # numbers of S that the generic row norms look at, at a time


class Sketch(ABC):
    """A linear map; data may be float32 or float64, on any device, one vector or rows of them."""

    def __init__(self, k: int, d: int) -> None:
        if k < 0 or d < 1:
            raise ValueError(f"A sketch maps d >= 1 numbers to k >= 0, not {d} to {k}.")
        self._shape = (k, d)

    @property
    def shape(self) -> tuple[int, int]:
        """(k, d): the size of a sketch and of what is sketched."""
        return self._shape

    def forward(self, x: Tensor) -> Tensor:
        """S^T x: (d,) to (k,), or rows (n, d) to (n, k)."""
        y = self._forward(_rows(x, self._shape[1], "a vector to sketch"))
        return y if x.ndim == 2 else y[0]

    def adjoint(self, y: Tensor) -> Tensor:
        """S y: (k,) to (d,), or rows (n, k) to (n, d)."""
        x = self._adjoint(_rows(y, self._shape[0], "a sketch"))
        return x if y.ndim == 2 else x[0]

    def row_norms_squared(self) -> Tensor:
        """diag(S S^T), float64 of size d: noise of variance v on every sketched coordinate becomes
        v times this after `adjoint` (Lemma 3.2 of DOME, with the squared rows of S, not its columns).

        This way works for every sketch and costs k calls of `adjoint`; those who know better override it.
        """
        k, d = self._shape
        total = torch.zeros(d, dtype=torch.float64)
        count = max(1, _COLUMN_BLOCK // d)
        for start in range(0, k, count):
            units = torch.zeros(min(count, k - start), k, dtype=torch.float64)
            units[:, start : start + len(units)].fill_diagonal_(1.0)
            total += self._adjoint(units).square().sum(dim=0)
        return total

    @property
    @abstractmethod
    def description_bytes(self) -> int:
        """What it costs to tell someone which sketch this is, beyond the run's settings."""

    def fingerprint(self) -> str:
        """SHA-256 of kind, shape and contents: equal if and only if the sketches are, bit by bit."""
        return digest([type(self).__name__, *self._shape, *self._parts()])

    @abstractmethod
    def _forward(self, rows: Tensor) -> Tensor: ...

    @abstractmethod
    def _adjoint(self, rows: Tensor) -> Tensor: ...

    @abstractmethod
    def _parts(self) -> Iterable[Part]:
        """What, beside kind and shape, makes this sketch the one it is."""


def checked_seed(seed: int) -> int:
    if not 0 <= seed < 1 << (8 * SEED_BYTES):
        raise ValueError(f"A sketch's seed is a whole number from 0 to 2^128 - 1, not {seed}.")
    return seed


def _rows(x: Tensor, size: int, what: str) -> Tensor:
    if x.ndim not in (1, 2) or x.shape[-1] != size:
        raise ValueError(
            f"Expected {what} of {size:,} numbers, or rows of them, not shape {tuple(x.shape)}: "
            "take it from the model or sketch that this one was made for."
        )
    if not x.dtype.is_floating_point:
        raise ValueError(f"Sketches are of floats, not {x.dtype}: convert the vector first.")
    return x.reshape(math.prod(x.shape[:-1]), size)
