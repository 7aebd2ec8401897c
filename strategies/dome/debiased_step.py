"""The server's optimiser step in DOME: Adam, AMSGrad or momentum SGD, with the noise removed from the second moment.

The variance of the noise is known. If the gradient g has noise of variance w per coordinate, then E[g^2] = (noise-free
g)^2 + w. (DOME, Lemma 3.2: w is the variance of the *mean's* noise times the squared row norms of the S that made g.)
The stored moments are not bias-corrected. The correction is applied only where they are used: a corrected moment that
is stored and fed back would never decay. Without noise the step is torch's Adam.

All tensors are stored in float32 and computed in float64, so that two machines that take the same step get the same
bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedsketch.conf.settings import Optimizer
from fedsketch.conf.strategy.dome import DebiasedConfig

EPSILON = 1e-8


class DebiasedStep:
    """Takes steps that change `vector` in place."""

    def __init__(self, vector: torch.Tensor, settings: DebiasedConfig) -> None:
        self._vector = vector
        self._settings = settings
        self.steps = 0
        names = ["first"]
        if settings.optimizer is not Optimizer.SGD:
            names += ["second", "noise"]  # noise: the moving average of the noise's variance
        if settings.optimizer is Optimizer.AMSGRAD:
            names += ["largest"]
        self._moments = {name: torch.zeros_like(vector) for name in names}

    @property
    def first_moment(self) -> torch.Tensor:
        """The first moment as it is stored, without bias correction."""
        return self._moments["first"]

    @property
    def corrected_moment(self) -> torch.Tensor:
        """The first moment with bias correction (it started at zero), in float64."""
        first = self.first_moment.double()
        return first / (1 - self._settings.momentum**self.steps) if self.steps else first

    def step(self, gradient: torch.Tensor, noise_variance: torch.Tensor) -> None:
        self._vector.copy_(self._vector.double() - self.change(gradient, noise_variance))

    def change(self, gradient: torch.Tensor, noise_variance: torch.Tensor) -> torch.Tensor:
        """Take the step without moving the vector. Returns what would be subtracted from it, in float64."""
        settings = self._settings
        self.steps += 1
        self._average("first", gradient, settings.momentum)
        change = self.corrected_moment
        if settings.optimizer is not Optimizer.SGD:
            self._average("second", gradient.double().square(), settings.second_momentum)
            self._average("noise", noise_variance, settings.second_momentum)
            change = change / (self._second().clamp(min=0).sqrt() + EPSILON)
        return settings.lr * change

    def _average(self, name: str, value: torch.Tensor, decay: float) -> None:
        moment = self._moments[name]
        moment.copy_(decay * moment.double() + (1 - decay) * value.double())

    def _second(self) -> torch.Tensor:
        """Return the second moment to divide by: bias-corrected, without the noise, and not below the floor."""
        settings, started = self._settings, 1 - self._settings.second_momentum**self.steps
        second, noise = (self._moments[name].double() / started for name in ("second", "noise"))
        if settings.debias:
            second = second - noise
        if settings.optimizer is Optimizer.AMSGRAD:
            largest = self._moments["largest"]
            largest.copy_(torch.maximum(largest.double(), second))
            second = largest.double()
        if settings.debias:
            # Where noise dominates, the difference is about zero and may be negative.
            second = torch.maximum(second, settings.floor * noise)
        return second

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"steps": torch.tensor(float(self.steps)), **self._moments}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        self.steps = int(state["steps"])
        for name, moment in self._moments.items():
            moment.copy_(state[name])
