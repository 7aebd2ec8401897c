"""The state of DOME with public directions: the model, the directions, and the optimiser's moments, which have k
numbers.

In a round, y is the mean of the clipped and noisy sketches S^T g_i. The server's optimiser makes a change c of k
numbers from it, and the model moves by -S c. The optimiser works on y and not on S y, because every number of y has
the same noise. So Adam divides all of them by about the same value, and the model stays in the span of S. On S y, Adam
would also make the step longer along inputs that hardly vary.

All tensors are stored in float32 and computed in float64, as in `strategies.dome.state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch

from fedsketch.conf import Config
from fedsketch.conf.strategy.dome import DomeConfig
from fedsketch.delivery.steps import Step
from fedsketch.sketching.layerwise_sketch import LayerwiseSketch
from fedsketch.sketching.sketch import digest
from fedsketch.strategies.dome.debiased_step import DebiasedStep
from fedsketch.strategies.dome.learned_sketch import folds_of
from fedsketch.tasks.models.flat_model import FlatModel


class PublicState:
    """Moves `vector` (d numbers, float32) in place; the layout is that of `model`. Version 0 has no directions yet:
    the server provides them."""

    def __init__(self, config: Config, model: FlatModel, vector: torch.Tensor) -> None:
        settings = cast(DomeConfig, config.strategy)
        self.vector = vector
        self.folds = folds_of(settings, model, config.rounds)
        size = sum(fold.size for fold in self.folds)
        self._optimizer = DebiasedStep(vector.new_zeros(size), settings.server)
        self._directions = {
            str(i): vector.new_zeros(fold.columns, fold.rank)
            for i, fold in enumerate(self.folds)
            if not fold.whole
        }
        self._given = not self._directions
        self._made: LayerwiseSketch | None = None

    @property
    def steps(self) -> int:
        """How many optimiser steps the model has made."""
        return self._optimizer.steps

    @property
    def version(self) -> int:
        """The number of the model's steps, plus one as soon as the first directions are set (if any fold needs
        directions)."""
        return self.steps + bool(self._given and self._directions)

    def sketch(self, server_round: int) -> LayerwiseSketch:
        """Return S. It is the same in every round until the directions change."""
        if self._made is None:
            self._made = LayerwiseSketch(self.folds, self._bases(), 0)
        return self._made

    def ranks(self, server_round: int) -> list[int]:
        """Return how many directions each fold of the sketch has."""
        return [0 if fold.whole else fold.rank for fold in self.folds]

    def apply(self, step: Step) -> None:
        if step.mean.numel():
            mean = step.mean.to(self.vector.device, torch.float64)
            change = self._optimizer.change(mean, torch.full_like(mean, step.deviation**2))
            moved = self.sketch(step.round).adjoint(change)
            self.vector.copy_(self.vector.double() - moved)
        if step.given:
            self.give(step.given)

    def give(self, directions: Mapping[str, torch.Tensor]) -> bool:
        """Use these directions from now on. They are copied. Returns whether they differ from the ones before."""
        before = self._directions
        after = {i: old.new_empty(old.shape).copy_(directions[i]) for i, old in before.items()}
        if self._given and all(torch.equal(old, after[i]) for i, old in before.items()):
            return False
        if self._given:
            self._carry_over(before, after)
        self._directions, self._given, self._made = after, True, None
        return True

    def broadcast_arrays(self, server_round: int) -> dict[str, torch.Tensor]:
        """Return the model and the directions of each fold, by the names that they are sent with."""
        return {"model": self.vector, **self.largest_bases()}

    def largest_bases(self) -> dict[str, torch.Tensor]:
        """Return the directions as in `broadcast_arrays`. Their number never changes."""
        return {f"basis-{i}": directions for i, directions in self._directions.items()}

    def state_dict(self) -> dict[str, torch.Tensor]:
        state = {"vector": self.vector, "given": torch.tensor(float(self._given))}
        state |= {f"optimizer.{name}": x for name, x in self._optimizer.state_dict().items()}
        return state | {f"directions.{i}": x for i, x in self._directions.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        self.vector.copy_(state["vector"])
        self._optimizer.load_state_dict(
            {name: state[f"optimizer.{name}"] for name in self._optimizer.state_dict()}
        )
        for i, directions in self._directions.items():
            self._directions[i] = directions.new_empty(directions.shape).copy_(
                state[f"directions.{i}"]
            )
        self._given, self._made = bool(state["given"]), None

    def fingerprint(self) -> str:
        return digest(part for item in sorted(self.state_dict().items()) for part in item)

    def _bases(self) -> list[torch.Tensor | None]:
        return [self._directions.get(str(i)) for i in range(len(self.folds))]

    def _carry_over(
        self, before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]
    ) -> None:
        """Convert the first moment from the directions `before` (P) to the directions `after` (P').

        The first moment m is a mean of G P. It becomes the same mean of G P', with G = m (P^T P)^-1 P^T, which is
        exact if the rows of G lie in the span of P. The second moment is kept: most of it is noise, which is the same
        in all directions.
        """
        start = 0
        for i, fold in enumerate(self.folds):
            end = start + fold.size
            if not fold.whole:
                old, new = before[str(i)].double(), after[str(i)].double()
                lengths = old.square().sum(dim=0)  # P^T P is diagonal
                inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
                moment = self._optimizer.first_moment[start:end].view(fold.rows, fold.rank)
                moment.copy_((moment.double() * inverse) @ (old.T @ new))
            start = end
