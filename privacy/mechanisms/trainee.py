"""What a mechanism asks of a strategy's half on the device: rows that are already computed, or a model to train."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from fedsketch.privacy.mechanisms.rows import Rows

if TYPE_CHECKING:
    import torch


class Trainee(Protocol):
    """A model in training on one device's examples. It sees noised sums only; what it tells of the examples goes to the
    mechanism alone."""

    examples: int  # how many there are
    width: int  # numbers of a row

    def rows(self, chosen: torch.Tensor) -> Iterable[torch.Tensor]:
        """One row per chosen example, at the model as it stands, in blocks of any size."""

    def step(self, update: torch.Tensor) -> None:
        """Move the model against `update`, a vector like a row."""

    def upload(self, total: torch.Tensor) -> torch.Tensor:
        """What the server is sent of the sum of all updates: the sum, or a shorter orthonormal image of it."""


class LocalHalf(Protocol):
    """A strategy's half at work in one round. A mechanism asks for one of the three."""

    def rows(self) -> torch.Tensor:
        """One row per privacy unit, to be bounded and blurred."""

    def blocks(self) -> Iterable[Rows]:
        """The same rows, some at a time and perhaps as factors, for a mechanism that needs no more than their sum."""

    def trainee(self) -> Trainee:
        """A model to be trained with noise inside."""
