"""What a mechanism needs from the part of a strategy that runs on the device: rows that are already computed, or a
model to train."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from fedsketch.privacy.mechanisms.rows import Rows

if TYPE_CHECKING:
    import torch


class TrainedModel(Protocol):
    """A model that is trained on one device's examples. It receives only noised sums, and passes what it computes from
    the examples only to the mechanism."""

    examples: int  # how many examples the device has
    width: int  # how many numbers a row has

    def rows(self, chosen: torch.Tensor) -> Iterable[torch.Tensor]:
        """Return one row per chosen example, computed with the current model, in blocks of any size."""

    def step(self, update: torch.Tensor) -> None:
        """Subtract `update`, a vector with the shape of a row, from the model."""

    def upload(self, total: torch.Tensor) -> torch.Tensor:
        """Return what is sent to the server: the sum of all updates, or a shorter orthonormal projection of it."""


class BoundHalf(Protocol):
    """The device's part of a strategy in one round. A mechanism calls one of the three methods."""

    def rows(self) -> torch.Tensor:
        """Return one row per privacy unit, to be clipped and noised."""

    def blocks(self) -> Iterable[Rows]:
        """Return the same rows in blocks, perhaps as factors, for a mechanism that needs only their sum."""

    def trained_model(self) -> TrainedModel:
        """Return a model for a mechanism that adds noise in every training step."""
