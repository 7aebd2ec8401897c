"""A classification problem of any size: one Gaussian cloud per class.

For experiments that need a certain dimension or number of examples and no real data.
"""

import math
from collections.abc import Sequence

import torch

from fedsketch.tasks.errors import DataError
from fedsketch.tasks.examples import Dataset, Examples


def load(
    root: str | None = None,
    examples: int = 2000,
    test_examples: int = 500,
    shape: Sequence[int] = (1, 8, 8),
    classes: int = 10,
    separation: float = 4.0,
    seed: int = 0,
) -> Dataset:
    """Unit-variance clouds around class centres of expected squared norm `separation` ** 2.

    The best possible classifier of two classes errs with probability Phi(-separation / sqrt 2).
    `shape` is (channels, height, width); a single number (n) means n features, as 1 x 1 x n.
    The same seed gives the same centres and the same test set for any number of `examples`.
    """
    del root  # made here: nothing to look for
    if min(examples, test_examples) < 1 or classes < 2:
        raise DataError(
            "Synthetic data needs at least 1 example, 1 test example and 2 classes, got "
            f"examples={examples}, test_examples={test_examples}, classes={classes}."
        )
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise DataError(
            f"Synthetic data has no shape {tuple(shape)}: give (channels, height, width) or one "
            "number of features, all at least 1."
        )
    if not (math.isfinite(separation) and separation >= 0):
        raise DataError(f"The separation must be finite and at least 0, got {separation}.")
    full_shape = (1, 1, shape[0]) if len(shape) == 1 else tuple(shape)
    features = math.prod(full_shape)
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, features, generator=generator) * separation / features**0.5

    def draw(count: int) -> Examples:
        # Every class equally often, up to one.
        targets = torch.randperm(count, generator=generator) % classes
        inputs = torch.randn(count, features, generator=generator)
        inputs += centres[targets]
        return Examples(inputs.view(count, *full_shape), targets)

    test = draw(test_examples)
    return Dataset("synthetic", draw(examples), test, classes)
