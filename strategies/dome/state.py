"""The state of DOME: model, moments and learned sketch, and the step from one round to the next.

The server owns one. With `broadcast=replay` every device that follows holds the same, and makes the same step from the
k numbers of an aggregate. Therefore everything rests in float32 and is computed in float64: the last bits of float64
products, in which machines differ, hardly ever survive the rounding, and a fingerprint finds the times when they do.
"""

from collections.abc import Mapping

import torch

from fedsketch.conf import Config
from fedsketch.conf.strategy.dome import DomeConfig
from fedsketch.privacy.mechanisms.randomness import derived_key
from fedsketch.replay.parcels import Step
from fedsketch.sketching.blocks import BlockSketch
from fedsketch.sketching.fingerprint import digest
from fedsketch.sketching.layerwise import LayerwiseSketch
from fedsketch.strategies.dome.debiased_step import DebiasedStep
from fedsketch.strategies.dome.learned_sketch import LearnedSketch, folds_of, sketch_of
from fedsketch.strategies.dome.literal import LiteralSketch, LiteralStep
from fedsketch.tasks.flat import FlatModel


class DomeState:
    """Moves `vector` (d numbers, float32) in place; the model lends its layout."""

    def __init__(self, config: Config, model: FlatModel, vector: torch.Tensor) -> None:
        self.vector = vector
        self._config = config
        self._settings = settings_of(config)
        self._model = model
        self._literal = self._settings.variant == "paper"
        step_class = LiteralStep if self._literal else DebiasedStep
        sketch_class = LiteralSketch if self._literal else LearnedSketch
        self._optimizer = step_class(vector, self._settings.server)
        after_warm_up = folds_of(self._settings, model, config.rounds + self._settings.warm_up)
        self._learner = sketch_class(self._settings, after_warm_up, vector.device)
        self._fading = 1.0 if self._literal else self._settings.mean_removal
        # The variance of the noise in the first moment: known only where it is needed.
        carries = self._fading and not self._literal
        self._carried = torch.zeros_like(vector) if carries else None
        self._made: tuple[int, int, LayerwiseSketch | BlockSketch] | None = None

    @property
    def version(self) -> int:
        return self._optimizer.steps

    def sketch(self, server_round: int) -> LayerwiseSketch | BlockSketch:
        """S of a round, were it the next one."""
        if self._made is None or self._made[:2] != (self.version, server_round):
            folds = folds_of(self._settings, self._model, server_round)
            known, seed = self._learned(server_round), probe_seed(self._config, server_round)
            made = sketch_of(self._settings, folds, known, seed)
            self._made = (self.version, server_round, made)
        return self._made[2]

    def ranks(self, server_round: int) -> list[int]:
        """How many learned directions each fold of that sketch has."""
        return [0 if basis is None else basis.shape[1] for basis in self._learned(server_round)]

    def reference(self) -> torch.Tensor | None:
        """What devices take for the mean of the gradients and remove before the clip (m_ref): the corrected moment,
        faded, so that it decays where the sketch does not look."""
        if not self._fading:
            return None
        return (self._fading * self._optimizer.corrected_moment).float()

    def apply(self, step: Step) -> None:
        sketch = self.sketch(step.round)
        released = sketch.adjoint(step.mean.to(self.vector.device, torch.float64))  # S y
        # Lemma 3.2, corrected: the variance of the mean's noise times diag(S S^T), the squared rows of the S that made
        # g.
        variance = step.deviation**2 * sketch.row_norms_squared().to(released)
        reference, noise = self.reference(), variance
        gradient = released if reference is None else released + reference.double()
        if self._carried is not None:
            noise = self._carry(variance)
        elif self._literal:  # line 19: a^2 diag(S^T S)
            noise = torch.full_like(variance, step.deviation**2)
        self._optimizer.step(gradient, noise)
        fed = self._optimizer.first_moment if self._settings.feed == "momentum" else released
        if self._literal:
            fed = gradient
        self._learner.feed(fed, step.deviation, sketch.folds)

    def broadcast_arrays(self, server_round: int) -> dict[str, torch.Tensor]:
        """The model, the learned directions of each fold and the reference; the probes follow from the seed and the
        round."""
        arrays = {"model": self.vector}
        for i, basis in enumerate(self._learned(server_round)):
            if basis is not None and basis.shape[1]:
                arrays[f"basis-{i}"] = basis
        reference = self.reference()
        return arrays if reference is None else {**arrays, "reference": reference}

    def largest_bases(self) -> dict[str, torch.Tensor]:
        """As `broadcast_arrays` names them, if every direction that can be learned were in use."""
        return {f"basis-{i}": x for i, x in enumerate(self._learner.room()) if x is not None}

    def state_dict(self) -> dict[str, torch.Tensor]:
        state = {"vector": self.vector}
        if self._carried is not None:
            state["carried"] = self._carried
        state |= {f"optimizer.{name}": x for name, x in self._optimizer.state_dict().items()}
        return state | {f"learner.{name}": x for name, x in self._learner.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        self.vector.copy_(state["vector"])
        if self._carried is not None:
            self._carried.copy_(state["carried"])
        self._optimizer.load_state_dict(_part(state, "optimizer."))
        self._learner.load_state_dict(_part(state, "learner."))
        self._made = None

    def fingerprint(self) -> str:
        return digest(part for item in sorted(self.state_dict().items()) for part in item)

    def _learned(self, server_round: int) -> list[torch.Tensor | None]:
        # In the layout in which they travel: another one changes the last bits of products.
        known = [None if u is None else u.contiguous() for u in self._learner.learned()]
        return [None] * len(known) if server_round <= self._settings.warm_up else known

    def _carry(self, variance: torch.Tensor) -> torch.Tensor:
        """The variance of the noise in g = S y + c m, m the first moment before this step; and of that after it.

        All is linear in the noise of the rounds, which is independent:
        m' = beta m + (1 - beta) g = (beta + (1 - beta) c) m + (1 - beta) S y.
        """
        assert self._carried is not None
        beta, steps = self._settings.server.momentum, self.version
        c = self._fading / (1 - beta**steps) if steps else 0.0
        before = self._carried.double()
        self._carried.copy_((beta + (1 - beta) * c) ** 2 * before + (1 - beta) ** 2 * variance)
        return c**2 * before + variance


def settings_of(config: Config) -> DomeConfig:
    assert isinstance(config.strategy, DomeConfig)
    return config.strategy


def probe_seed(config: Config, server_round: int) -> int:
    """Public: it hides nothing, and saves sending the probes."""
    return int.from_bytes(derived_key(config.seed, "probes", server_round), "big")


def _part(state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): x for key, x in state.items() if key.startswith(prefix)}
