"""The server's optimiser: one of torch's optimisers on one flat parameter vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedsketch.conf.settings import Optimizer, OptimizerConfig


class ServerOptimizer:
    """Moves `vector` in place, against the mean update of the clients."""

    def __init__(self, vector: torch.Tensor, settings: OptimizerConfig) -> None:
        self._parameter = torch.nn.Parameter(vector, requires_grad=False)
        self._parameter.data = vector  # shares the caller's memory
        self._optimizer: torch.optim.Optimizer
        if settings.optimizer is Optimizer.SGD:
            self._optimizer = torch.optim.SGD(
                [self._parameter], lr=settings.lr, momentum=settings.momentum
            )
        else:
            self._optimizer = torch.optim.Adam(
                [self._parameter],
                lr=settings.lr,
                amsgrad=settings.optimizer is Optimizer.AMSGRAD,
            )

    def step(self, update: torch.Tensor) -> None:
        self._parameter.grad = update
        self._optimizer.step()

    def begin_with(self, moments: Mapping[str, torch.Tensor], steps: int = 0) -> None:
        """Use these moments from now on, by torch's names, as after this many steps. They change in place."""
        if moments:
            count = {"step": torch.tensor(float(steps))}
            self._optimizer.state[self._parameter] = {**count, **moments}

    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)
