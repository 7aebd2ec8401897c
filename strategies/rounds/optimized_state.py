"""The state of a strategy that takes optimiser steps, as devices follow it (`strategy.broadcast=replay`): the model and
the optimiser's moments. Each step follows from the mean of a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from fedsketch.conf import Config
from fedsketch.delivery.steps import Step
from fedsketch.sketching.sketch import digest
from fedsketch.strategies.rounds.rounded_optimizer import RoundedOptimizer

# Returns the mean update of all numbers, of a model of this size, in the precision of the step's mean.
Expand = Callable[[Config, int, Step], Tensor]


class OptimizedState:
    """Moves `vector` (d numbers, float32, on the CPU) in place: a `Replayed`."""

    def __init__(self, config: Config, vector: Tensor, expand: Expand) -> None:
        self.vector = vector
        self._config = config
        self._expand = expand
        self._optimizer = RoundedOptimizer(vector, config.strategy.server)

    @property
    def version(self) -> int:
        return self._optimizer.steps

    def apply(self, step: Step) -> None:
        wide = replace(step, mean=step.mean.double())
        self._optimizer.step(self._expand(self._config, self.vector.numel(), wide))

    def broadcast_arrays(self, server_round: int) -> dict[str, Tensor]:
        return {"model": self.vector}

    def state_dict(self) -> dict[str, Tensor]:
        return {"vector": self.vector, **self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.vector.copy_(state["vector"])
        self._optimizer.load_state_dict(state)

    def fingerprint(self) -> str:
        return digest(part for item in sorted(self.state_dict().items()) for part in item)
