"""Public data: examples that the server holds, that are no client's, and whose privacy nobody protects.

They are held out of the training set (`data.public`, `validation.examples`), or lie in a folder of the server
(`data.public_root`). Either way no public example has the same content as one of the test set or of the training set's
rest, so neither tests nor clients' data are among them. What devices hold themselves (data=folder) the server cannot
look at: validation takes a part of its own examples.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch

from fedsketch.tasks import folder
from fedsketch.tasks.errors import DataError
from fedsketch.tasks.examples import Dataset, Examples
from fedsketch.tasks.schema import Schema
from fedsketch.tasks.tabular import read_examples

_STREAM = 1  # of the seed: the partition draws from another one


def held_out(
    dataset: Dataset, counts: Sequence[int], seed: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The indices of so many random training examples for each purpose, and those of the rest, each in rising order.

    An example that occurs twice, in the training set or in both sets, is never drawn. The first purpose gets the same
    examples whatever the others ask for.
    """
    contents = _contents(dataset.train)
    tested = set(_contents(dataset.test))
    drawn = _drawn(contents, tested, seed)[: sum(counts)]
    if len(drawn) < sum(counts) or sum(counts) == len(contents):
        raise DataError(
            f"{sum(counts):,} of the {len(contents):,} training examples cannot be held out, with some left for the "
            "clients and none that occurs twice: lower data.public or validation.examples."
        )
    ends = list(itertools.accumulate(counts, initial=0))
    parts = [_rising(drawn[start:stop]) for start, stop in itertools.pairwise(ends)]
    left = np.ones(len(contents), dtype=bool)
    left[drawn] = False
    return parts, torch.from_numpy(np.flatnonzero(left))


def split_test(test: Examples, count: int, seed: int) -> tuple[Examples, Examples]:
    """Split off this many random examples of the server's test set; the rest is the test set from then on. It is for
    data of which the server has nothing else. The examples that are split off are all different."""
    drawn = _drawn(_contents(test), set(), seed)[:count]
    if len(drawn) < count or count == len(test):
        raise DataError(
            f"{count:,} of the server's {len(test):,} examples cannot be held out for validation, with some left to "
            "test on and none that occurs twice: lower validation.examples, or put more into data.root."
        )
    left = np.ones(len(test), dtype=bool)
    left[drawn] = False
    return test.take(_rising(drawn)), test.take(torch.from_numpy(np.flatnonzero(left)))


def _drawn(contents: Sequence[bytes], others: Collection[bytes], seed: int) -> list[int]:
    """All indices of examples that occur once and not among others, in random order."""
    times = Counter(contents)
    order = np.random.default_rng((seed, _STREAM)).permutation(len(contents))
    return [i for i in order if times[contents[i]] == 1 and contents[i] not in others]


def _rising(indices: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(np.sort(np.asarray(indices, dtype=np.int64)))


def read_public(
    root: str,
    dataset: Dataset,
    shape: Sequence[int],
    classes: Sequence[str],
    schema: Schema | None = None,
) -> Examples:
    """The public examples below `root`, on the scale of the data set; refused if some are examples of the data set
    itself."""
    path = Path(root).expanduser()
    examples = read_examples(path, schema) if schema else folder.read(path, shape, classes)
    examples = dataset.normalised(examples)
    contents = _contents(examples)
    for what, others in (("test", dataset.test), ("training", dataset.train)):
        both = set(_contents(others)).intersection(contents)
        if both:
            raise DataError(
                f"data.public_root={root} holds {len(both):,} examples of the {what} set: take them out, or set "
                "data.public instead."
            )
    return examples


def _contents(examples: Examples) -> list[bytes]:
    """A hash of each example's input."""
    rows = examples.inputs.flatten(1).contiguous().numpy()
    return [hashlib.blake2b(row, digest_size=16).digest() for row in rows]
