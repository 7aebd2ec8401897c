"""The sketch of DOME's next round: for each weight matrix the learned directions that are stronger than the noise, and
random directions (probes) for the rest.

A fold is a part of the model that is sketched as a matrix, with a number of directions, its rank. A fold is sent whole
if its rank equals its number of columns. The flat sketch of the paper has one fold: the whole model as one row with d
columns. Everything follows from the means that were fed and from the seed, so server and devices can make the same
sketch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fedsketch.conf.strategy.dome import DomeConfig
from fedsketch.errors import ConfigError
from fedsketch.sketching.blocks import BlockSketch, block_folds
from fedsketch.sketching.folding import Fold, folds_of_rank, folds_of_size
from fedsketch.sketching.layerwise_sketch import LayerwiseSketch, probe_length
from fedsketch.sketching.noise_floor import NoiseFloor, keep_above, keep_count, keep_energy
from fedsketch.sketching.streaming_pca import StreamingPCA
from fedsketch.strategies.rounds.codec import sketch_size
from fedsketch.tasks.models.flat_model import FlatModel

WHOLE_UP_TO = 512  # numbers; sketching a smaller tensor saves nothing, so it is sent whole


def folds_of(settings: DomeConfig, model: FlatModel, server_round: int) -> tuple[Fold, ...]:
    """Return how the model's tensors are sent in a round. In a warm-up round they are sent whole."""
    folds = _sketched_folds(settings, model)
    if server_round <= settings.warm_up:
        return tuple(replace(fold, rank=fold.columns) for fold in folds)
    return folds


def _sketched_folds(settings: DomeConfig, model: FlatModel) -> tuple[Fold, ...]:
    layout = [(slot.shape, slot.start, slot.stop) for slot in model.layout]
    smallest = 1
    if settings.sketch == "layerwise":
        smallest = sum(fold.size for fold in folds_of_rank(layout, 1, WHOLE_UP_TO))
    k = sketch_size(settings.sketch_dim, model.size)
    if settings.sketch_dim < 1:
        k = max(smallest, k)
    if k < smallest:
        raise ConfigError(
            f"A layer-wise sketch of this model has at least {smallest} numbers: "
            "raise strategy.sketch_dim, or set strategy.sketch=flat."
        )
    if settings.sketch == "flat":
        return (Fold(0, 1, model.size, k),)
    if settings.sketch == "blocks":
        return block_folds(model.size, k)
    return folds_of_size(layout, k, WHOLE_UP_TO)


def isotropic(settings: DomeConfig) -> bool:
    """Return whether probes are scaled up, so that the desketched mean is unbiased. Without this S S^T is a
    projection. Error feedback needs a projection, because with longer probes the residual would grow. The algorithm as
    printed in the paper (`variant=paper`) uses a projection too."""
    return not settings.error_feedback and settings.variant == "corrected"


def sketch_of(
    settings: DomeConfig, folds: Sequence[Fold], learned: Sequence[torch.Tensor | None], seed: int
) -> LayerwiseSketch | BlockSketch:
    """Return the sketch S of a round, from the folds and the learned directions of that round."""
    if settings.sketch == "blocks" and not all(fold.whole for fold in folds):
        return BlockSketch(folds, seed, isotropic=isotropic(settings))
    return LayerwiseSketch(folds, learned, seed, isotropic=isotropic(settings))


class LearnedSketch:
    """Learns the directions of every fold by streaming PCA, and keeps track of how much noise was in its input."""

    def __init__(self, settings: DomeConfig, folds: Sequence[Fold], device: torch.device) -> None:
        self._settings = settings
        self._folds = tuple(folds)
        learns = settings.sketch != "blocks"  # a block sketch has new random signs in every round
        self._learners = [
            _Learner(settings, fold, device) if learns and not fold.whole else None
            for fold in folds
        ]

    @property
    def folds(self) -> tuple[Fold, ...]:
        return self._folds

    def learned(self) -> list[torch.Tensor | None]:
        """Return the directions to use again, per fold (columns x any number). None where nothing is learned."""
        return [None if learner is None else learner.kept() for learner in self._learners]

    def largest(self) -> list[torch.Tensor | None]:
        """Return zeros of the largest shapes that `learned` can return."""
        return [None if learner is None else learner.largest() for learner in self._learners]

    def feed(self, vector: torch.Tensor, deviation: float, sensed: Sequence[Fold]) -> None:
        """Learn from a desketched mean (or its moving average). Its sketch was made with the current `learned`
        directions and the folds `sensed`. `deviation` is the standard deviation of the noise in each number of that
        sketch."""
        for fold, learner, used in zip(self._folds, self._learners, sensed, strict=True):
            if learner is not None:
                learner.feed(fold.matrix(vector), deviation, used)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {
            f"{i}.{name}": tensor
            for i, learner in enumerate(self._learners)
            if learner is not None
            for name, tensor in learner.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        for i, learner in enumerate(self._learners):
            if learner is not None:
                mine = {
                    key.partition(".")[2]: x for key, x in state.items() if key.startswith(f"{i}.")
                }
                learner.load_state_dict(mine)


class _Learner:
    """Learns the subspace of one fold."""

    def __init__(self, settings: DomeConfig, fold: Fold, device: torch.device) -> None:
        self._settings = settings
        self._capacity = math.floor(settings.learned_share * fold.rank)
        self._pca = StreamingPCA(
            fold.columns, fold.rank, settings.decay, arithmetic=torch.float64, device=device
        )
        momentum = settings.server.momentum if settings.feed == "momentum" else 0.0
        self._floor = NoiseFloor(settings.decay, momentum, fold.rows)

    def kept(self) -> torch.Tensor:
        values = self._pca.eigenvalues
        if self._settings.keep == "noise_floor":
            count = keep_above(values, self._floor.value())
        elif self._settings.keep == "energy":
            count = keep_energy(values, self._settings.energy)
        else:
            count = len(values)
        return self._pca.basis[:, : min(count, keep_count(values, self._capacity))]

    def largest(self) -> torch.Tensor:
        return torch.zeros(len(self._pca.basis), self._capacity)

    def feed(self, matrix: torch.Tensor, deviation: float, sensed: Fold) -> None:
        if isotropic(self._settings) and not sensed.whole:
            # The noise floor is computed for an orthonormal S. Here ||S Xi A|| <= ||S|| ||Xi A||, and ||S|| is the
            # length of the probes.
            deviation *= probe_length(sensed, self.kept().shape[1])
        self._pca.update(matrix)
        self._floor.update(deviation, sensed.rank)

    def state_dict(self) -> dict[str, torch.Tensor]:
        pca = self._pca.state_dict()
        noise = torch.tensor(self._floor.state_dict(), dtype=torch.float64).view(-1, 2)
        return {**pca, "updates": torch.tensor(float(pca["updates"])), "noise": noise}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        self._pca.load_state_dict(state)
        self._floor.load_state_dict(state["noise"].tolist())
