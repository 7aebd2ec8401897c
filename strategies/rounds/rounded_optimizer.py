"""The server's optimiser in a form that every machine repeats with the same result (`strategy.broadcast=replay`).

Vector and moments are stored in float32 and computed in float64. Machines may differ in the last bits of float64.
Rounding to float32 almost always removes the difference; where it does not, the fingerprint of the state reveals it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedsketch.conf.settings import Optimizer, OptimizerConfig
from fedsketch.strategies.rounds.optimizer import ServerOptimizer

_MOMENTS = {
    Optimizer.SGD: ("momentum_buffer",),
    Optimizer.ADAM: ("exp_avg", "exp_avg_sq"),
    Optimizer.AMSGRAD: ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
}


class RoundedOptimizer:
    """Moves `vector` (float32) in place, against the mean update of the clients, by the steps of torch's optimiser."""

    def __init__(self, vector: Tensor, settings: OptimizerConfig) -> None:
        self._vector = vector
        self._wide = vector.double()
        self._inner = ServerOptimizer(self._wide, settings)
        plain = settings.optimizer is Optimizer.SGD and not settings.momentum
        names = () if plain else _MOMENTS[settings.optimizer]
        self._moments = {name: torch.zeros_like(self._wide) for name in names}
        self._inner.begin_with(self._moments)
        self.steps = 0

    def step(self, update: Tensor) -> None:
        self._wide.copy_(self._vector)
        self._inner.step(update)
        self._vector.copy_(self._wide)
        for moment in self._moments.values():
            moment.copy_(moment.float())
        self.steps += 1

    def state_dict(self) -> dict[str, Tensor]:
        moments = {name: moment.float() for name, moment in self._moments.items()}
        return {"steps": torch.tensor(float(self.steps)), **moments}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.steps = int(state["steps"])
        for name, moment in self._moments.items():
            moment.copy_(state[name])
        self._inner.begin_with(self._moments, self.steps)
