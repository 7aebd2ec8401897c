"""DOME as its paper prints it (`variant=paper`), for comparison.

This file has the steps that the default variant corrects (docs/strategies/dome.md):
- Line 17 feeds back the bias-corrected first moment, which therefore never decays. The same moment is the mean that is
  removed from gradients, and it is not faded.
- Line 19 subtracts a^2 diag(S^T S), which is a^2 in every coordinate. We take `a` to be the standard deviation of the
  mean's noise, which is the most favourable interpretation.
- Line 21 increases t before UpdateSketch, so its branch for the first update never runs and QR starts from zeros.
- UpdateSketch takes the column norms of R as Lambda. They are not sorted, and the energy rule squares them twice.

The privacy is that of the corrected algorithm, because clip and noise are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch

from fedsketch.conf import Config
from fedsketch.conf.strategy.dome import DebiasedConfig, DomeConfig
from fedsketch.delivery.steps import Step
from fedsketch.sketching.folding import Fold
from fedsketch.strategies.dome.debiased_step import EPSILON
from fedsketch.strategies.dome.state import SketchedState
from fedsketch.tasks.models.flat_model import FlatModel


class PrintedState(SketchedState):
    """The state of the printed algorithm."""

    def __init__(self, config: Config, model: FlatModel, vector: torch.Tensor) -> None:
        server = cast(DomeConfig, config.strategy).server
        super().__init__(config, model, vector, PrintedStep(vector, server), PrintedSketch)

    def reference(self) -> torch.Tensor:
        return self.optimizer.corrected_moment.float()

    def apply(self, step: Step) -> None:
        sketch = self.sketch(step.round)
        released = sketch.adjoint(step.mean.to(self.vector.device, torch.float64))  # S y
        gradient = released + self.reference().double()
        # Line 19: a^2 diag(S^T S).
        noise = torch.full_like(released, step.deviation**2)
        self.optimizer.step(gradient, noise)
        self.learner.feed(gradient, step.deviation, sketch.folds)


class PrintedStep:
    """Lines 17 to 20 of the algorithm. Moves `vector` in place."""

    def __init__(self, vector: torch.Tensor, settings: DebiasedConfig) -> None:
        self._vector = vector
        self._settings = settings
        self.steps = 0
        self._first = torch.zeros_like(vector)
        self._second = torch.zeros_like(vector)

    @property
    def first_moment(self) -> torch.Tensor:
        return self._first

    @property
    def corrected_moment(self) -> torch.Tensor:
        """The first moment as it is stored, because it is stored with bias correction."""
        return self._first.double()

    def step(self, gradient: torch.Tensor, noise_variance: torch.Tensor) -> None:
        settings = self._settings
        self.steps += 1
        beta1, beta2 = settings.momentum, settings.second_momentum
        first = beta1 * self._first.double() + (1 - beta1) * gradient  # line 17
        self._first.copy_(first / (1 - beta1**self.steps))  # line 18
        second = beta2 * self._second.double() + (1 - beta2) * gradient.square()
        self._second.copy_(second)
        # Line 19. The difference may be negative, and the paper does not say what happens then: we use zero.
        corrected = (second / (1 - beta2**self.steps) - noise_variance).clamp(min=0)
        change = self._first.double() / (corrected.sqrt() + EPSILON)
        self._vector.copy_(self._vector.double() - settings.lr * change)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {
            "steps": torch.tensor(float(self.steps)),
            "first": self._first,
            "second": self._second,
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        self.steps = int(state["steps"])
        self._first.copy_(state["first"])
        self._second.copy_(state["second"])


class PrintedSketch:
    """The paper's UpdateSketch, for the one fold of a flat sketch."""

    def __init__(self, settings: DomeConfig, folds: Sequence[Fold], device: torch.device) -> None:
        (fold,) = folds
        self._energy = settings.energy
        self._most = fold.rank
        self._directions = torch.zeros(fold.columns, fold.rank, device=device)
        self._scales = torch.zeros(fold.rank, device=device)
        self._kept = 0

    def learned(self) -> list[torch.Tensor | None]:
        return [self._directions[:, : self._kept]]

    def largest(self) -> list[torch.Tensor | None]:
        return [torch.zeros_like(self._directions)]

    def feed(self, vector: torch.Tensor, deviation: float, sensed: Sequence[Fold]) -> None:
        stacked = torch.cat(
            [(self._directions * self._scales).double(), vector.double().unsqueeze(1)], dim=1
        )
        basis, upper = torch.linalg.qr(stacked)
        scales = torch.linalg.vector_norm(upper, dim=0)
        energies = torch.cumsum(scales.square().square(), dim=0)
        enough = int((energies < self._energy * energies[-1]).sum()) + 1
        self._kept = min(enough, self._most)
        self._directions.copy_(basis[:, : self._most])
        self._scales.copy_(scales[: self._most])

    def state_dict(self) -> dict[str, torch.Tensor]:
        kept = torch.tensor(float(self._kept))
        return {"directions": self._directions, "scales": self._scales, "kept": kept}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        self._directions.copy_(state["directions"])
        self._scales.copy_(state["scales"])
        self._kept = int(state["kept"])
