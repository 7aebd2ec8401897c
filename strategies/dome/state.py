"""The state of DOME (the model, the optimiser's moments and the learned sketch), and the step from one round to the
next.

The server has one. With `broadcast=replay` every device has a copy, and makes the same step from the k numbers of an
aggregate. Therefore all tensors are stored in float32 and computed in float64. Machines may differ in the last bits of
float64 products. Rounding to float32 almost always removes the difference; where it does not, a fingerprint (a hash of
the state) reveals it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor

from fedsketch.conf import Config
from fedsketch.conf.strategy.dome import DomeConfig
from fedsketch.delivery.steps import Step
from fedsketch.privacy.mechanisms.randomness import derived_key
from fedsketch.sketching.blocks import BlockSketch
from fedsketch.sketching.folding import Fold
from fedsketch.sketching.layerwise_sketch import LayerwiseSketch
from fedsketch.sketching.sketch import digest
from fedsketch.strategies.dome.debiased_step import DebiasedStep
from fedsketch.strategies.dome.learned_sketch import LearnedSketch, folds_of, sketch_of
from fedsketch.tasks.models.flat_model import FlatModel


class MomentStep(Protocol):
    """An optimiser step with moments (`strategies.dome.debiased_step`)."""

    steps: int

    @property
    def first_moment(self) -> Tensor: ...

    @property
    def corrected_moment(self) -> Tensor: ...

    def step(self, gradient: Tensor, noise_variance: Tensor) -> None: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


class SketchLearner(Protocol):
    """Learns directions from desketched means (`strategies.dome.learned_sketch`)."""

    def __init__(
        self, settings: DomeConfig, folds: Sequence[Fold], device: torch.device
    ) -> None: ...

    def learned(self) -> list[Tensor | None]: ...

    def largest(self) -> list[Tensor | None]: ...

    def feed(self, vector: Tensor, deviation: float, sensed: Sequence[Fold]) -> None: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


class SketchedState(ABC):
    """What the default state and the paper's have in common. Moves `vector` (d numbers, float32) in place; the layout
    is that of `model`."""

    def __init__(
        self,
        config: Config,
        model: FlatModel,
        vector: Tensor,
        optimizer: MomentStep,
        sketch: type[SketchLearner],
    ) -> None:
        self.vector = vector
        self.settings = cast(DomeConfig, config.strategy)
        self.optimizer = optimizer
        after_warm_up = folds_of(self.settings, model, config.rounds + self.settings.warm_up)
        self.learner: SketchLearner = sketch(self.settings, after_warm_up, vector.device)
        self._config = config
        self._model = model
        self._made: tuple[int, int, LayerwiseSketch | BlockSketch] | None = None

    @abstractmethod
    def reference(self) -> Tensor | None:
        """Return m_ref, an estimate of the mean gradient that devices subtract before the clip; None if none is
        subtracted."""

    @abstractmethod
    def apply(self, step: Step) -> None:
        """Take the server's step."""

    @property
    def version(self) -> int:
        return self.optimizer.steps

    def sketch(self, server_round: int) -> LayerwiseSketch | BlockSketch:
        """Return the sketch that this round would use if it were the next one."""
        if self._made is None or self._made[:2] != (self.version, server_round):
            folds = folds_of(self.settings, self._model, server_round)
            known, seed = self._learned(server_round), probe_seed(self._config, server_round)
            made = sketch_of(self.settings, folds, known, seed)
            self._made = (self.version, server_round, made)
        return self._made[2]

    def ranks(self, server_round: int) -> list[int]:
        """Return how many learned directions each fold of that sketch has."""
        return [0 if basis is None else basis.shape[1] for basis in self._learned(server_round)]

    def broadcast_arrays(self, server_round: int) -> dict[str, Tensor]:
        """Return the model, the learned directions of each fold, and m_ref. Devices make the probes from seed and
        round."""
        arrays = {"model": self.vector}
        for i, basis in enumerate(self._learned(server_round)):
            if basis is not None and basis.shape[1]:
                arrays[f"basis-{i}"] = basis
        reference = self.reference()
        return arrays if reference is None else {**arrays, "reference": reference}

    def largest_bases(self) -> dict[str, Tensor]:
        """Return directions as in `broadcast_arrays`, as many as can ever be learned, filled with zeros."""
        return {f"basis-{i}": x for i, x in enumerate(self.learner.largest()) if x is not None}

    def state_dict(self) -> dict[str, Tensor]:
        state = {"vector": self.vector}
        state |= {f"optimizer.{name}": x for name, x in self.optimizer.state_dict().items()}
        return state | {f"learner.{name}": x for name, x in self.learner.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.vector.copy_(state["vector"])
        self.optimizer.load_state_dict(_part(state, "optimizer."))
        self.learner.load_state_dict(_part(state, "learner."))
        self._made = None

    def fingerprint(self) -> str:
        return digest(part for item in sorted(self.state_dict().items()) for part in item)

    def _learned(self, server_round: int) -> list[Tensor | None]:
        # In the memory layout in which they are sent: another layout changes the last bits of products.
        known = [None if u is None else u.contiguous() for u in self.learner.learned()]
        return [None] * len(known) if server_round <= self.settings.warm_up else known


class DomeState(SketchedState):
    """The default: the paper's algorithm with the corrections of docs/strategies/dome.md."""

    def __init__(self, config: Config, model: FlatModel, vector: Tensor) -> None:
        server = cast(DomeConfig, config.strategy).server
        super().__init__(config, model, vector, DebiasedStep(vector, server), LearnedSketch)
        # The variance of the noise in the first moment. Only removing the mean needs it.
        tracked = self.settings.mean_removal > 0
        self._moment_noise = torch.zeros_like(vector) if tracked else None

    def reference(self) -> Tensor | None:
        """Return the bias-corrected moment times `mean_removal`. A factor below 1 makes it decay in directions that
        the sketch does not see."""
        fading = self.settings.mean_removal
        return (fading * self.optimizer.corrected_moment).float() if fading else None

    def apply(self, step: Step) -> None:
        sketch = self.sketch(step.round)
        released = sketch.adjoint(step.mean.to(self.vector.device, torch.float64))  # S y
        # Lemma 3.2, corrected: the variance of the mean's noise times diag(S S^T), the squared row norms of the S that
        # made g.
        variance = step.deviation**2 * sketch.row_norms_squared().to(released)
        reference, noise = self.reference(), variance
        gradient = released if reference is None else released + reference.double()
        if self._moment_noise is not None:
            noise = self._with_moment_noise(variance)
        self.optimizer.step(gradient, noise)
        fed = self.optimizer.first_moment if self.settings.feed == "momentum" else released
        self.learner.feed(fed, step.deviation, sketch.folds)

    def state_dict(self) -> dict[str, Tensor]:
        state = super().state_dict()
        return state if self._moment_noise is None else {**state, "carried": self._moment_noise}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        if self._moment_noise is not None:
            self._moment_noise.copy_(state["carried"])

    def _with_moment_noise(self, variance: Tensor) -> Tensor:
        """Return the variance of the noise in g = S y + c m, given that in S y, and update that of the first moment.

        m is the first moment before this step and m' the one after it. Both are linear in the noise of the rounds,
        which is independent: m' = beta m + (1 - beta) g = (beta + (1 - beta) c) m + (1 - beta) S y.
        """
        assert self._moment_noise is not None
        beta, steps = self.settings.server.momentum, self.version
        c = self.settings.mean_removal / (1 - beta**steps) if steps else 0.0
        before = self._moment_noise.double()
        after = (beta + (1 - beta) * c) ** 2 * before + (1 - beta) ** 2 * variance
        self._moment_noise.copy_(after)
        return c**2 * before + variance


def probe_seed(config: Config, server_round: int) -> int:
    """Return the seed from which server and devices make the probes of a round. It is public: no privacy rests on
    it."""
    return int.from_bytes(derived_key(config.seed, "probes", server_round), "big")


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): x for key, x in state.items() if key.startswith(prefix)}
