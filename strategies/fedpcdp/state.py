"""The state of FedPCDP that devices follow: the model, the optimiser's moments, and the directions of every block.

The server makes the directions from public examples, which devices do not have, and sends them with the step after
which they hold. Devices could not make them from the same examples: where two singular values are nearly equal, their
vectors depend on the last bits of a processor's arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from fedsketch.conf import Config
from fedsketch.conf.strategy.fedpcdp import FedPcdpConfig
from fedsketch.delivery.steps import Step
from fedsketch.privacy.mechanisms.randomness import derived_key
from fedsketch.sketching.cholesky_qr import orthonormalise
from fedsketch.sketching.subspace import Block, SubspaceSketch, blocks_of
from fedsketch.strategies.fedpcdp.directions import Directions, ListedDirections, restored
from fedsketch.strategies.rounds.optimized_state import OptimizedState
from fedsketch.tasks.models.flat_model import FlatModel

_PREFIX = "directions"


class SubspaceState(OptimizedState):
    """Version 0 has no directions yet: the server provides them."""

    def __init__(self, config: Config, model: FlatModel, vector: Tensor) -> None:
        super().__init__(config, vector, lambda config, size, step: self._sketched(step))
        self._seed, self._settings = config.seed, cast(FedPcdpConfig, config.strategy)
        self._blocks = blocks(self._settings, model)
        self._sketched_blocks = {i: b for i, b in enumerate(self._blocks) if not b.whole}
        self.directions: dict[int, Directions] = {
            i: ListedDirections(torch.zeros(block.size, block.stop - block.start).half(), 0)
            for i, block in self._sketched_blocks.items()
        }
        self._sketch: SubspaceSketch | None = None
        self._rows: dict[str, Tensor] = {}

    @property
    def version(self) -> int:
        return super().version + (self._sketch is not None)

    def apply(self, step: Step) -> None:
        if step.mean.numel():
            super().apply(step)
        if step.given:
            self.give({i: _part(step.given, f"{i}.") for i in self._sketched_blocks})

    def give(self, described: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Use these directions from now on."""
        self.directions = {
            i: restored(
                described[i], block, self._settings.public_examples, seed_of(self._seed, 0, i)
            )
            for i, block in self._sketched_blocks.items()
        }
        self._rows = {key_of(i): made.rows() for i, made in self.directions.items()}
        bases = [
            None if block.whole else orthonormalise(self._rows[key_of(i)].double())
            for i, block in enumerate(self._blocks)
        ]
        self._sketch = SubspaceSketch(self._blocks, bases)

    def described(self) -> dict[str, Tensor]:
        """Return what describes the directions, by the names with which they are sent."""
        return {
            f"{i}.{name}": tensor
            for i, made in self.directions.items()
            for name, tensor in made.tensors().items()
        }

    def broadcast_arrays(self, server_round: int) -> dict[str, Tensor]:
        return {**super().broadcast_arrays(server_round), **self._rows}

    def state_dict(self) -> dict[str, Tensor]:
        described = {f"{_PREFIX}.{name}": tensor for name, tensor in self.described().items()}
        return {**super().state_dict(), **described}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.give({i: _part(state, f"{_PREFIX}.{i}.") for i in self._sketched_blocks})

    def _sketched(self, step: Step) -> Tensor:
        if self._sketch is None:
            raise ValueError("The first step of a parcel has to bring directions.")
        return self._sketch.adjoint(step.mean)


def blocks(settings: FedPcdpConfig, model: FlatModel) -> tuple[Block, ...]:
    """Return the parts of a gradient. Each has directions of its own."""
    if settings.projection == "none":
        return (Block(0, model.size, model.size),)
    parts = [(slot.start, slot.stop) for slot in model.layout]
    return blocks_of([(0, model.size)] if settings.basis == "whole" else parts, settings.rank)


def key_of(block: int) -> str:
    """Return the name with which the directions of a block are sent."""
    return f"directions-{block}"


def seed_of(seed: int, *labels: int) -> int:
    """Return the seed of a choice that server and devices make alike."""
    return int.from_bytes(derived_key(seed, "public directions", *labels)[:7], "big")


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): tensor
        for key, tensor in tensors.items()
        if key.startswith(prefix)
    }
