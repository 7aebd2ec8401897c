"""The base class of all sketches. A sketch is a linear map from R^d to R^k; its adjoint undoes it approximately.

Written as a d x k matrix S, `forward` is S^T x and `adjoint` is S y. Both are linear, so the sketch of a sum is the
sum of the sketches. This is why secure aggregation can add up sketches that nobody may see. No other code multiplies
by S, and a large S is never stored if a seed is enough to compute it.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

SEED_BYTES = 16  # a seed is a whole number below 2^128
_COLUMN_BLOCK = 1 << 22  # numbers of S that the generic row norms compute at a time


class Sketch(ABC):
    """A linear map. Data may be float32 or float64, on any device, and one vector or several as rows."""

    def __init__(self, k: int, d: int) -> None:
        if k < 0 or d < 1:
            raise ValueError(f"A sketch maps d >= 1 numbers to k >= 0, not {d} to {k}.")
        self._shape = (k, d)

    @property
    def shape(self) -> tuple[int, int]:
        """(k, d): the size of a sketch, and the size of the vector that is sketched."""
        return self._shape

    def forward(self, x: Tensor) -> Tensor:
        """Return S^T x: (d,) to (k,), or rows (n, d) to (n, k)."""
        y = self.forward_rows(_rows(x, self._shape[1], "a vector to sketch"))
        return y if x.ndim == 2 else y[0]

    def adjoint(self, y: Tensor) -> Tensor:
        """Return S y: (k,) to (d,), or rows (n, k) to (n, d)."""
        x = self.adjoint_rows(_rows(y, self._shape[0], "a sketch"))
        return x if y.ndim == 2 else x[0]

    def row_norms_squared(self) -> Tensor:
        """Return diag(S S^T), float64 of size d. Noise of variance v on every sketched coordinate has v times this
        variance after `adjoint` (Lemma 3.2 of DOME, with the squared rows of S, not its columns).

        This implementation works for every sketch and applies `adjoint` to k unit vectors. Subclasses override it if
        they know a faster way.
        """
        k, d = self._shape
        total = torch.zeros(d, dtype=torch.float64)
        count = max(1, _COLUMN_BLOCK // d)
        for start in range(0, k, count):
            units = torch.zeros(min(count, k - start), k, dtype=torch.float64)
            units[:, start : start + len(units)].fill_diagonal_(1.0)
            total += self.adjoint_rows(units).square().sum(dim=0)
        return total

    @property
    @abstractmethod
    def description_bytes(self) -> int:
        """How many bytes must be sent to describe this sketch to someone who knows the run's settings."""

    def fingerprint(self) -> str:
        """Return SHA-256 of kind, shape and contents: equal if and only if the sketches are equal bit by bit."""
        return digest([type(self).__name__, *self._shape, *self.digest_parts()])

    # ------------------------------------------------------------------ what each kind of sketch implements
    @abstractmethod
    def forward_rows(self, rows: Tensor) -> Tensor:
        """Return `forward` of checked rows: (n, d) to (n, k)."""

    @abstractmethod
    def adjoint_rows(self, rows: Tensor) -> Tensor:
        """Return `adjoint` of checked rows: (n, k) to (n, d)."""

    @abstractmethod
    def digest_parts(self) -> Iterable[DigestPart]:
        """Return the contents that identify this sketch, besides its kind and shape."""


def checked_seed(seed: int) -> int:
    if not 0 <= seed < 1 << (8 * SEED_BYTES):
        raise ValueError(f"The seed of a sketch must be from 0 to 2^128 - 1, not {seed}.")
    return seed


def _rows(x: Tensor, size: int, what: str) -> Tensor:
    if x.ndim not in (1, 2) or x.shape[-1] != size:
        raise ValueError(
            f"Expected {what} of {size:,} numbers, or rows of them, not shape {tuple(x.shape)}: "
            "take it from the model or sketch that this one was made for."
        )
    if not x.dtype.is_floating_point:
        raise ValueError(f"Only floats can be sketched, not {x.dtype}: convert the vector first.")
    return x.reshape(math.prod(x.shape[:-1]), size)


DigestPart = int | float | str | Tensor


def digest(parts: Iterable[DigestPart]) -> str:
    """Return SHA-256 of the parts in order. The type of every part is hashed too, and the shape and dtype of
    tensors."""
    state = hashlib.sha256(b"fedsketch sketch state")
    for part in parts:
        header, body = _encoded(part)
        state.update(f"{header}:{len(body)};".encode())
        state.update(body)
    return state.hexdigest()


def _encoded(part: DigestPart) -> tuple[str, memoryview]:
    if isinstance(part, Tensor):
        if part.dtype not in (torch.float16, torch.float32, torch.float64):
            raise ValueError(
                f"Only float16, float32 and float64 tensors can be hashed, not {part.dtype}."
            )
        array = part.detach().cpu().contiguous().numpy()
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        return f"{little.dtype.str}{list(part.shape)}", little.reshape(-1).view(np.uint8).data
    text = part.hex() if isinstance(part, float) else str(part)
    return type(part).__name__, memoryview(text.encode())
