"""The digits are scikit-learn's, in its own stratified split, and loading them does not import it."""

import subprocess
import sys

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fedsketch.conf.settings import DataSettings
from fedsketch.tasks.data import digits


def test_examples_are_those_of_scikit_learns_stratified_split() -> None:
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(
        images / 16.0,
        labels,
        test_size=digits.TEST_SHARE,
        stratify=labels,
        random_state=digits.SPLIT_SEED,
    )
    loaded = digits.load(DataSettings("digits", None), seed=1)
    ours = (
        *(examples.inputs.flatten(1) for examples in (loaded.train, loaded.test)),
        *(examples.targets for examples in (loaded.train, loaded.test)),
    )
    for mine, theirs in zip(ours, split, strict=True):
        assert torch.equal(mine, torch.as_tensor(theirs, dtype=mine.dtype))


def test_a_small_model_on_digits_is_made_without_slow_imports() -> None:
    code = """
import sys
from fedsketch.conf import compose
from fedsketch.tasks.workload import Workload
Workload(compose()).model()
print([name for name in ("sklearn", "scipy.stats", "sympy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
