"""The 8 x 8 handwritten digits that come with scikit-learn: real data without a download.

The file is read and split here, because importing scikit-learn takes more than a second in every process.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedsketch.conf.settings import DataSettings
from fedsketch.errors import DataError
from fedsketch.tasks.data.examples import Dataset, Examples

SPLIT_SEED = 0
TEST_SHARE = 0.2

Integers = NDArray[np.int64]


def load(settings: DataSettings, seed: int) -> Dataset:
    """Return 1,437 training examples and 360 test examples, the same for every seed, with the same share of each class
    in both."""
    table = np.loadtxt(_file(), delimiter=",")
    images, labels = table[:, :-1] / 16.0, table[:, -1].astype(np.int64)

    def examples(rows: Integers) -> Examples:
        pixels = torch.as_tensor(images[rows], dtype=torch.float32)
        return Examples(pixels.view(-1, 1, 8, 8), torch.as_tensor(labels[rows]))

    train, test = _stratified_split(labels, np.random.RandomState(SPLIT_SEED))
    return Dataset("digits", examples(train), examples(test), classes=10)


def _file() -> Path:
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError("data=digits is a file of scikit-learn: install scikit-learn.")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def _stratified_split(labels: Integers, random: np.random.RandomState) -> tuple[Integers, Integers]:
    """Return the training and test rows that scikit-learn's `train_test_split` chooses with `stratify=labels`."""
    classes, counts = np.unique(labels, return_counts=True)
    tested = math.ceil(TEST_SHARE * len(labels))
    of_train = _proportional(counts, len(labels) - tested, random)
    of_test = _proportional(counts - of_train, tested, random)
    train, test = [], []
    for label, first, second in zip(classes, of_train, of_test, strict=True):
        rows = random.permutation(np.flatnonzero(labels == label))
        train.append(rows[:first])
        test.append(rows[first : first + second])
    return random.permutation(np.concatenate(train)), random.permutation(np.concatenate(test))


def _proportional(counts: Integers, total: int, random: np.random.RandomState) -> Integers:
    """Return whole numbers that add up to `total`, in proportion to `counts`. Among equal remainders, a random choice
    is rounded up."""
    exact = counts / counts.sum() * total
    whole = np.floor(exact)
    remainders = exact - whole
    for value in np.unique(remainders)[::-1]:
        missing = int(total - whole.sum())
        equal = np.flatnonzero(remainders == value)
        if missing > 0:
            whole[random.choice(equal, min(len(equal), missing), replace=False)] += 1
    return whole.astype(np.int64)
