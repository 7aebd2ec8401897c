"""The directions of one block, in a form that is short to send: the directions themselves, or, for the weight of a
linear layer, the factors of the public gradients that they are made of (`sketching.outer_directions`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedsketch.sketching.outer_directions import OuterDirections
from fedsketch.sketching.subspace import Block, principal_directions
from fedsketch.tasks.gradients.slot_gradients import OuterFactors


class Directions(Protocol):
    @property
    def found(self) -> int:
        """How many directions are in the span of the public gradients. The others are random."""

    def rows(self) -> Tensor:
        """Return the directions in float16, (size, p)."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what describes them."""


@dataclass(frozen=True)
class ListedDirections:
    """Directions that are sent one by one."""

    listed: Tensor
    found: int

    def rows(self) -> Tensor:
        return self.listed

    def tensors(self) -> dict[str, Tensor]:
        return {"listed": self.listed}


def shortest(factors: OuterFactors, size: int, seed: int) -> Directions:
    """Return the principal directions of the public gradients of a block."""
    left, right = factors
    if right is not None:
        outer = OuterDirections.principal(left.cpu(), right.cpu(), size, seed)
        if _bytes(outer.tensors()) < 2 * size * left.shape[1] * right.shape[1]:
            return outer
        left = (left[:, :, None] * right[:, None, :]).flatten(1)
    directions, found = principal_directions(left.cpu(), size, seed)
    return ListedDirections(directions.half(), found)


def restored(tensors: Mapping[str, Tensor], block: Block, examples: int, seed: int) -> Directions:
    """Return the directions that `tensors` describe, which were made from so many examples."""
    if "listed" in tensors:
        return ListedDirections(tensors["listed"].half(), block.size)
    return OuterDirections.of(tensors, (block.size, examples), block.stop - block.start, seed)


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
