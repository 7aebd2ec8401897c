"""The state of DOME (the model, the optimiser's moments and the learned sketch), and the step from one round to the
next.

The server has one. With `broadcast=replay` every device has a copy, and makes the same step from the k numbers of an
aggregate. Therefore all tensors are stored in float32 and computed in float64. Machines may differ in the last bits of
float64 products. Rounding to float32 almost always removes the difference; where it does not, a fingerprint (a hash of
the state) reveals it.
"""

from collections.abc import Mapping

import torch

from fedsketch.conf import Config
from fedsketch.conf.strategy.dome import DomeConfig
from fedsketch.delivery.parcels import Step
from fedsketch.privacy.mechanisms.randomness import derived_key
from fedsketch.sketching.blocks import BlockSketch
from fedsketch.sketching.digest import digest
from fedsketch.sketching.layerwise import LayerwiseSketch
from fedsketch.strategies.dome.debiased_step import DebiasedStep
from fedsketch.strategies.dome.learned_sketch import LearnedSketch, folds_of, sketch_of
from fedsketch.strategies.dome.printed import LiteralSketch, LiteralStep
from fedsketch.tasks.models.flat_model import FlatModel


class DomeState:
    """Moves `vector` (d numbers, float32) in place; the layout is that of `model`."""

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
        # The variance of the noise in the first moment. Only removing the mean needs it.
        tracked = self._fading and not self._literal
        self._moment_noise = torch.zeros_like(vector) if tracked else None
        self._made: tuple[int, int, LayerwiseSketch | BlockSketch] | None = None

    @property
    def version(self) -> int:
        return self._optimizer.steps

    def sketch(self, server_round: int) -> LayerwiseSketch | BlockSketch:
        """Return the sketch that this round would use if it were the next one."""
        if self._made is None or self._made[:2] != (self.version, server_round):
            folds = folds_of(self._settings, self._model, server_round)
            known, seed = self._learned(server_round), probe_seed(self._config, server_round)
            made = sketch_of(self._settings, folds, known, seed)
            self._made = (self.version, server_round, made)
        return self._made[2]

    def ranks(self, server_round: int) -> list[int]:
        """Return how many learned directions each fold of that sketch has."""
        return [0 if basis is None else basis.shape[1] for basis in self._learned(server_round)]

    def reference(self) -> torch.Tensor | None:
        """Return m_ref, an estimate of the mean gradient that devices subtract before the clip. It is the
        bias-corrected moment times `mean_removal`. A factor below 1 makes it decay in directions that the sketch does
        not see."""
        if not self._fading:
            return None
        return (self._fading * self._optimizer.corrected_moment).float()

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
        elif self._literal:  # line 19: a^2 diag(S^T S)
            noise = torch.full_like(variance, step.deviation**2)
        self._optimizer.step(gradient, noise)
        fed = self._optimizer.first_moment if self._settings.feed == "momentum" else released
        if self._literal:
            fed = gradient
        self._learner.feed(fed, step.deviation, sketch.folds)

    def broadcast_arrays(self, server_round: int) -> dict[str, torch.Tensor]:
        """Return the model, the learned directions of each fold, and m_ref. Devices make the probes from seed and
        round."""
        arrays = {"model": self.vector}
        for i, basis in enumerate(self._learned(server_round)):
            if basis is not None and basis.shape[1]:
                arrays[f"basis-{i}"] = basis
        reference = self.reference()
        return arrays if reference is None else {**arrays, "reference": reference}

    def largest_bases(self) -> dict[str, torch.Tensor]:
        """Return directions as in `broadcast_arrays`, as many as can ever be learned, filled with zeros."""
        return {f"basis-{i}": x for i, x in enumerate(self._learner.largest()) if x is not None}

    def state_dict(self) -> dict[str, torch.Tensor]:
        state = {"vector": self.vector}
        if self._moment_noise is not None:
            state["carried"] = self._moment_noise
        state |= {f"optimizer.{name}": x for name, x in self._optimizer.state_dict().items()}
        return state | {f"learner.{name}": x for name, x in self._learner.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        self.vector.copy_(state["vector"])
        if self._moment_noise is not None:
            self._moment_noise.copy_(state["carried"])
        self._optimizer.load_state_dict(_part(state, "optimizer."))
        self._learner.load_state_dict(_part(state, "learner."))
        self._made = None

    def fingerprint(self) -> str:
        return digest(part for item in sorted(self.state_dict().items()) for part in item)

    def _learned(self, server_round: int) -> list[torch.Tensor | None]:
        # In the memory layout in which they are sent: another layout changes the last bits of products.
        known = [None if u is None else u.contiguous() for u in self._learner.learned()]
        return [None] * len(known) if server_round <= self._settings.warm_up else known

    def _with_moment_noise(self, variance: torch.Tensor) -> torch.Tensor:
        """Return the variance of the noise in g = S y + c m, given that in S y, and update that of the first moment.

        m is the first moment before this step and m' the one after it. Both are linear in the noise of the rounds,
        which is independent: m' = beta m + (1 - beta) g = (beta + (1 - beta) c) m + (1 - beta) S y.
        """
        assert self._moment_noise is not None
        beta, steps = self._settings.server.momentum, self.version
        c = self._fading / (1 - beta**steps) if steps else 0.0
        before = self._moment_noise.double()
        after = (beta + (1 - beta) * c) ** 2 * before + (1 - beta) ** 2 * variance
        self._moment_noise.copy_(after)
        return c**2 * before + variance


def settings_of(config: Config) -> DomeConfig:
    assert isinstance(config.strategy, DomeConfig)
    return config.strategy


def probe_seed(config: Config, server_round: int) -> int:
    """Return the seed from which server and devices make the probes of a round. It is public: no privacy rests on
    it."""
    return int.from_bytes(derived_key(config.seed, "probes", server_round), "big")


def _part(state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): x for key, x in state.items() if key.startswith(prefix)}
