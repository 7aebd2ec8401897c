"""A server step on a mean whose noise is known: Adam, AMSGrad or momentum SGD, with the noise taken out of the second moment.

g has noise of variance w per coordinate, so E[g^2] = (noise-free g)^2 + w (DOME, Lemma 3.2: w is the variance of the *mean's* noise times
the squared row norms of the S that made g). The raw moments are stored and bias-corrected only where they are used: a stored
corrected moment, fed back, never decays. Without noise it is torch's Adam.
"""

from typing import Any

import torch

from conf.schema import DebiasedConfig, Optimizer

EPSILON = 1e-8


class DebiasedStep:
    """Moves `vector` in place."""

    def __init__(self, vector: torch.Tensor, settings: DebiasedConfig) -> None:
        self._vector = vector
        self._settings = settings
        self._steps = 0
        self._first = torch.zeros_like(vector)
        self._second = torch.zeros_like(vector)
        self._largest = torch.zeros_like(vector)
        self._noise = torch.zeros_like(
            vector
        )  # the same average as the second moment's, of the noise's variance

    @property
    def first_moment(self) -> torch.Tensor:
        """The raw one."""
        return self._first

    @property
    def corrected_moment(self) -> torch.Tensor:
        """The first moment without the bias of its start at zero."""
        if self._steps == 0:
            return self._first
        return self._first / (1 - self._settings.momentum**self._steps)

    def step(self, gradient: torch.Tensor, noise_variance: torch.Tensor) -> None:
        settings = self._settings
        beta1, beta2 = settings.momentum, settings.second_momentum
        self._steps += 1
        self._first.mul_(beta1).add_(gradient, alpha=1 - beta1)
        if settings.optimizer is Optimizer.sgd:
            self._vector.sub_(self.corrected_moment, alpha=settings.lr)
            return
        self._second.mul_(beta2).add_(gradient.square(), alpha=1 - beta2)
        self._noise.mul_(beta2).add_(noise_variance, alpha=1 - beta2)
        second = self._second - self._noise if settings.debias else self._second
        second = second / (1 - beta2**self._steps)
        if settings.optimizer is Optimizer.amsgrad:
            second = self._largest = torch.maximum(self._largest, second)
        if settings.debias:
            # Where noise rules, the difference is about zero and may be negative.
            second = torch.maximum(second, settings.floor * self._noise / (1 - beta2**self._steps))
        self._vector.sub_(
            self.corrected_moment / (second.clamp(min=0).sqrt() + EPSILON), alpha=settings.lr
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self._steps,
            "first": self._first,
            "second": self._second,
            "largest": self._largest,
            "noise": self._noise,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
        self._first.copy_(state["first"])
        self._second.copy_(state["second"])
        self._largest.copy_(state["largest"])
        self._noise.copy_(state["noise"])
