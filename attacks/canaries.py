"""The audit's data: canaries. Each of them pushes the model in its own direction, with a gradient far above every
clip.

The task is a linear model without an offset. The gradient of an example x of class 0 is (p - e_0) x^T, so inputs of
zero contribute exactly nothing, whatever the model is, and the inputs of a canary choose its direction. Models stay
near zero (`attacks.shrink`), so p is uniform, and canaries with orthogonal inputs have orthogonal gradients.

In every second round a canary pushes the other way. The theorems let a unit contribute anything within its bound in
every round, so this is allowed, and it exposes noise that is used twice: it would differ from contributions that
change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedsketch.conf import Config
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import DataShape, Workload

# 640 parameters: enough for layers to be sketched, few enough for a round to take milliseconds.
FEATURES, CLASSES = 80, 8
_SHAPE = (1, 1, FEATURES)
_PUBLIC = 256
# Norm of a canary's gradient divided by the clip, large enough for every local learning rate.
_FAR_ABOVE = 1e3


class Canary(NamedTuple):
    """A unit that is present or not: one of a client's examples (its only example, if clients are the unit)."""

    client: int
    example: int = 0


class CanaryWorkload(Workload):
    """The data of a trial: `present` canaries push along their direction, `opposed` clients against that of the
    first."""

    def __init__(self, config: Config, examples: int) -> None:
        super().__init__(config)
        self.canaries: list[Canary] = []
        self.directions: NDArray[np.float64] = np.eye(FEATURES)  # one row per canary
        self.present: set[Canary] = set()
        self.opposed: set[int] = set()
        self.round = 1
        self._examples = examples
        clip = config.privacy.first_clip
        assert clip is not None
        steps = config.strategy.local
        alone = steps.steps == 1 and steps.epochs is None
        slow = 1.0 if alone or config.strategy.noise_in_training else min(1.0, steps.lr)
        self.length = _FAR_ABOVE * clip / slow

    def shard(self, client: int) -> Examples:
        inputs = torch.zeros(self._examples, *_SHAPE)
        sign = 1.0 if self.round % 2 else -1.0
        for direction, canary in zip(self.directions, self.canaries, strict=False):
            if canary in self.present and canary.client == client:
                inputs[canary.example] = torch.from_numpy(sign * self.length * direction)
        if client in self.opposed:
            inputs[0] = torch.from_numpy(-sign * self.length * self.directions[0])
        return Examples(inputs, torch.zeros(self._examples, dtype=torch.int64))

    def local_test(self, client: int) -> Examples:
        """Return held-out examples for evaluations; an absent canary has none. The model is untrained, so it predicts
        the same class for all examples. The target of a canary is this class. In every second round, and for clients
        that push against the canary, it is another class. Every loss is as large as its bound allows
        (`attacks.shrink`)."""
        own = [c for c in self.canaries if c in self.present and c.client == client]
        right = len(own) * [self.round % 2 == 1] + (client in self.opposed) * [False]
        targets = torch.tensor([0 if one else 1 for one in right], dtype=torch.int64)
        return Examples(torch.zeros(len(targets), *_SHAPE), targets)

    def model(self) -> FlatModel:
        layer = nn.Linear(FEATURES, CLASSES, bias=False)
        nn.init.zeros_(layer.weight)
        return FlatModel(nn.Sequential(nn.Flatten(), layer))

    @property
    def features(self) -> None:
        """No feature map: the model sees the canaries themselves."""

    @property
    def public(self) -> Examples:
        generator = torch.Generator().manual_seed(0)
        count = max(_PUBLIC, getattr(self._config.strategy, "public_examples", 0))
        inputs = torch.randn(count, *_SHAPE, generator=generator)
        return Examples(inputs, torch.randint(CLASSES, (count,), generator=generator))

    @property
    def examples(self) -> int:
        return self._examples * self._config.clients.total

    @property
    def largest_shard(self) -> int:
        return self._examples

    @property
    def largest_local_test(self) -> int:
        return self._examples

    @property
    def kind(self) -> DataShape:
        return DataShape(_SHAPE, CLASSES)
