"""Public data: examples on the server that belong to no client, and that no guarantee protects.

They are held out of the training set (`data.public`, `validation.examples`), or come from a folder on the server
(`data.public_root`). No public example has the same content as an example of the test set or of the clients. If
devices have data of their own (data=folder), the server cannot see them: then validation uses a part of the server's
own examples.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch

from fedsketch.errors import DataError
from fedsketch.tasks.data import folder
from fedsketch.tasks.data.examples import Dataset, Examples
from fedsketch.tasks.data.schema import Schema
from fedsketch.tasks.data.tabular import read_examples

_STREAM = 1  # a random stream of the seed that is independent of the partition's


def draw_for_server(
    dataset: Dataset, counts: Sequence[int], seed: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the indices of this many random training examples for each purpose, and those of the rest, each in
    ascending order.

    An example that occurs twice, in the training set or in both sets, is never drawn. The examples of the first
    purpose do not depend on the counts of the others.
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
    """Split this many random examples off the server's test set, and return them and the rest, which is the new test
    set. It is used if the server has no other data. No example that occurs twice is split off."""
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
    """Return the indices of all examples that occur once and not among `others`, in random order."""
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
    """Return the public examples below `root`, normalised like the data set. Raises DataError if some are examples of
    the data set itself."""
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
    """Return a hash of each example's input."""
    rows = examples.inputs.flatten(1).contiguous().numpy()
    return [hashlib.blake2b(row, digest_size=16).digest() for row in rows]
