"""A classification problem of any size: one Gaussian cloud per class.

It is for experiments that need a certain dimension or number of examples, but no real data.
"""

from __future__ import annotations

import math

import torch

from fedsketch.conf.data.synthetic import SyntheticConfig
from fedsketch.errors import DataError
from fedsketch.tasks.data.examples import Dataset, Examples
from fedsketch.tasks.models.memory_limit import refuse_beyond_memory


def load(settings: SyntheticConfig, seed: int) -> Dataset:
    """Return clouds of unit variance around class centres with the expected squared norm `separation` ** 2.

    The error of the best possible classifier of two classes is about Phi(-separation / sqrt 2).
    The same seed gives the same centres and the same test set for any number of `examples`.
    """
    classes, features = settings.classes, math.prod(settings.shape)
    scalars = (settings.examples + settings.test_examples + classes) * (features + 1)
    advice = "lower data.examples, data.test_examples, data.classes or data.shape"
    refuse_beyond_memory(scalars, advice, DataError)
    generator = torch.Generator().manual_seed(seed)
    centres = (
        torch.randn(classes, features, generator=generator) * settings.separation / features**0.5
    )

    def draw(count: int) -> Examples:
        # The sizes of the classes differ by at most one.
        targets = torch.randperm(count, generator=generator) % classes
        inputs = torch.randn(count, features, generator=generator)
        inputs += centres[targets]
        return Examples(inputs.view(count, *settings.shape), targets)

    test = draw(settings.test_examples)
    return Dataset("synthetic", draw(settings.examples), test, classes)
