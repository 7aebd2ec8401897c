"""Public data: examples that the server holds, that are no client's, and whose privacy nobody protects.

They are held out of the training set (`data.public`), or lie in a folder of the server (`data.public_root`). Either way no public example
has the same content as one of the test set or of the training set's rest, so neither tests nor clients' data are among them. What
devices hold themselves (data=folder) the server cannot look at.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedsketch.tasks import folder
from fedsketch.tasks.errors import DataError
from fedsketch.tasks.examples import Dataset, Examples
from fedsketch.tasks.schema import Schema
from fedsketch.tasks.tabular import read_examples

_STREAM = 1  # of the seed: the partition draws from another one


def held_out(dataset: Dataset, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices of `count` random training examples, and those of the rest, each in rising order.

    An example that occurs twice, in the training set or in both sets, is never drawn.
    """
    contents = _contents(dataset.train)
    times, tested = Counter(contents), set(_contents(dataset.test))
    order = np.random.default_rng((seed, _STREAM)).permutation(len(contents))
    drawn = [i for i in order if times[contents[i]] == 1 and contents[i] not in tested][:count]
    if len(drawn) < count or count == len(contents):
        raise DataError(
            f"{count:,} of the {len(contents):,} training examples cannot be held out as public, with some left for the clients "
            "and none that occurs twice: lower data.public."
        )
    public = np.zeros(len(contents), dtype=bool)
    public[drawn] = True
    return torch.from_numpy(np.flatnonzero(public)), torch.from_numpy(np.flatnonzero(~public))


def read_public(
    root: str,
    dataset: Dataset,
    shape: Sequence[int],
    classes: Sequence[str],
    schema: Schema | None = None,
) -> Examples:
    """The public examples below `root`, on the scale of the data set; refused if some are examples of the data set itself."""
    path = Path(root).expanduser()
    examples = read_examples(path, schema) if schema else folder.read(path, shape, classes)
    examples = dataset.normalised(examples)
    contents = _contents(examples)
    for what, others in (("test", dataset.test), ("training", dataset.train)):
        both = set(_contents(others)).intersection(contents)
        if both:
            raise DataError(
                f"data.public_root={root} holds {len(both):,} examples of the {what} set: take them out, or set data.public instead."
            )
    return examples


def _contents(examples: Examples) -> list[bytes]:
    """A hash of each example's input."""
    rows = examples.inputs.flatten(1).contiguous().numpy()
    return [hashlib.blake2b(row, digest_size=16).digest() for row in rows]
