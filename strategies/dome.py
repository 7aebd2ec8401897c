"""DOME: the sketch that learns. Clients send S^T g_i of k << d numbers; the server desketches, steps, and updates S from what it saw.

Per round: s_i = clip(S^T g_i, C) with noise; y their mean; g = S y; moments with the noise's variance taken out; new S.
Where this mends the paper's text is listed in docs/strategies.md.

Formal guarantees: those of `strategies.noise.NoisePlan.releases`, with an upload of k numbers. S is public and made from earlier
releases only, so it is post-processing; the clip comes after the sketch and bounds it whatever S is.
"""

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch

from conf import Config
from conf.schema import DomeConfig
from privacy.randomness import derived_key
from sketching.folding import Fold
from sketching.layerwise import LayerwiseSketch
from strategies.base import FederatedStrategy
from strategies.cohort import Cohorts
from strategies.debiased_step import DebiasedStep
from strategies.learned_sketch import LearnedSketch, folds_of
from strategies.local_update import unit_rows
from strategies.messages import Aggregate, Broadcast, Number
from strategies.noise import NoisePlan
from tasks.examples import Examples
from tasks.flat import FlatModel


class Dome(FederatedStrategy):
    """The server's half."""

    def __init__(
        self, config: Config, model: FlatModel, noise: NoisePlan, cohorts: Cohorts, examples: int
    ) -> None:
        super().__init__(config, model, noise, cohorts, examples)
        self.settings = _settings(config)
        self.optimizer = DebiasedStep(model.vector, self.settings.server)
        after_warm_up = folds_of(self.settings, model, config.rounds + self.settings.warm_up)
        self.learner = LearnedSketch(self.settings, after_warm_up, model.device)
        self._sketch: LayerwiseSketch | None = None
        self._ranks: list[int] = []  # learned directions in use, per fold
        self._energy: float | None = None

    @staticmethod
    def upload_size(config: Config, model: FlatModel, server_round: int) -> int:
        return sum(fold.size for fold in folds_of(_settings(config), model, server_round))

    def broadcast_extras(
        self, server_round: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, Number]]:
        """The learned directions of each fold; the probes follow from the seed and the round."""
        folds = folds_of(self.settings, self.model, server_round)
        # In the layout in which they travel: another one changes the last bits of the products.
        known = [None if basis is None else basis.contiguous() for basis in self.learner.learned()]
        if server_round <= self.settings.warm_up:
            known = [None] * len(folds)
        self._sketch = LayerwiseSketch(folds, known, _probe_seed(self.config, server_round))
        self._ranks = [0 if basis is None else basis.shape[1] for basis in known]
        arrays = {
            f"basis-{i}": basis
            for i, basis in enumerate(known)
            if basis is not None and basis.shape[1]
        }
        return arrays, {}

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        assert self._sketch is not None
        mean = aggregate.sum / self.units(aggregate)
        deviation = aggregate.noise_std / self.units(aggregate)
        self._energy = captured_energy(self._sketch.folds, self._ranks, mean, deviation)
        gradient = self._sketch.adjoint(mean)
        # Lemma 3.2, mended: the variance of the mean's noise times diag(S S^T), the squared rows of the S that made g.
        variance = deviation**2 * self._sketch.row_norms_squared().to(gradient)
        self.optimizer.step(gradient, variance)
        fed = self.optimizer.first_moment if self.settings.feed == "momentum" else gradient
        self.learner.feed(fed, deviation, self._sketch.folds)

    def metrics(self) -> dict[str, float | None]:
        if self.arrived == 0:  # nobody was drawn
            return {"sketch_energy": None, "sketch_rank": None}
        return {"sketch_energy": self._energy, "sketch_rank": float(sum(self._ranks))}

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "learner": self.learner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.learner.load_state_dict(state["learner"])


def local_step(
    broadcast: Broadcast,
    shard: Examples,
    model: FlatModel,
    generator: torch.Generator,
    memory: MutableMapping[str, torch.Tensor],
) -> torch.Tensor:
    """The device's half: S^T g of every unit."""
    rows = unit_rows(broadcast.config, model, shard, generator)
    return _broadcast_sketch(broadcast, model).forward(rows)


def captured_energy(
    folds: Sequence[Fold], ranks: Sequence[int], mean: torch.Tensor, deviation: float
) -> float | None:
    """The share of the mean gradient's energy that the sketch sees, estimated from the sketch alone.

    The probes look at a random part of what the learned directions leave, so their noise-free energy, scaled up to all of it, is an
    unbiased estimate of the rest. None where noise leaves nothing to estimate, or no probe looked.
    """
    seen = whole = 0.0
    end = 0
    for fold, rank in zip(folds, ranks, strict=True):
        sketched = mean[end : end + fold.size].double().view(fold.rows, fold.rank)
        end += fold.size
        energy = sketched.square().sum(dim=0) - fold.rows * deviation**2
        learned, probed = float(energy[:rank].sum()), float(energy[rank:].sum())
        seen += learned + probed
        if fold.rank == rank:
            return None
        whole += learned + probed * (fold.columns - rank) / (fold.rank - rank)
    return min(1.0, max(0.0, seen / whole)) if whole > 0 else None


def _settings(config: Config) -> DomeConfig:
    assert isinstance(config.strategy, DomeConfig)
    return config.strategy


def _probe_seed(config: Config, server_round: int) -> int:
    """Public: it hides nothing, and saves sending the probes."""
    return int.from_bytes(derived_key(config.seed, "probes", server_round), "big")


_last: tuple[Broadcast, LayerwiseSketch] | None = None


def _broadcast_sketch(broadcast: Broadcast, model: FlatModel) -> LayerwiseSketch:
    """The sketch of a broadcast, made once for all clients that share a process."""
    global _last
    if _last is None or _last[0] is not broadcast:
        folds = folds_of(_settings(broadcast.config), model, broadcast.round)
        known = [broadcast.arrays.get(f"basis-{i}") for i in range(len(folds))]
        seed = _probe_seed(broadcast.config, broadcast.round)
        _last = (broadcast, LayerwiseSketch(folds, known, seed))
    return _last[1]


SERVER, LOCAL_STEP = Dome, local_step
