"""Turns the cells of a table into numbers, column by column, using only the schema.

A cell that is empty, or NA, NaN, null or ?, is missing. A missing number becomes the middle of its bounds. A missing
category is treated as an unknown one, which has an input of its own. A missing text is empty. A target cannot be
missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from fedsketch.conf.targets import Targets
from fedsketch.errors import DataError
from fedsketch.tasks.data.bad_records import BadRecords, one_record
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.data.schema import Category, Number, Schema, Text
from fedsketch.tasks.data.tables import Table
from fedsketch.tasks.models.memory_limit import refuse_beyond_memory

YES, NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")

_Floats = npt.NDArray[np.float32]


def examples_of(table: Table, schema: Schema, bad: BadRecords | None = None) -> Examples:
    """Return the rows of a table as input vectors and targets. With `bad`, each is in a place, and those that cannot be
    used leave theirs blank."""
    inputs, targets = inputs_of(table, schema, bad), torch.from_numpy(_targets(table, schema, bad))
    if bad is None:
        return Examples(inputs, targets)
    present = bad.present(len(table))
    inputs[~present] = 0
    targets[~present] = 0
    return Examples(inputs, targets, present)


def inputs_of(table: Table, schema: Schema, bad: BadRecords | None = None) -> torch.Tensor:
    """Return the rows of a table as input vectors, (N, width)."""
    (width,) = schema.shape
    # The number of a device's rows must not decide: the bound does.
    most = len(table) if bad is None or bad.most is None else bad.most
    refuse_beyond_memory(
        most * width, f"take fewer rows of {table.path}, or fewer buckets", DataError
    )
    inputs = np.zeros((len(table), width), dtype=np.float32)
    start = 0
    for name, column in schema.inputs.items():
        block = inputs[:, start : start + column.width]
        if isinstance(column, Number):
            block[:, 0] = np.nan_to_num(_scaled(table, name, column, bad))
        elif isinstance(column, Category):
            block[np.arange(len(table)), _places(table.columns[name], column.values)] = 1
        else:
            block[:] = _hashed(table.columns[name], column)
        start += column.width
    return torch.from_numpy(inputs)


def flags(
    table: Table,
    name: str,
    yes: Sequence[str],
    no: Sequence[str],
    bad: BadRecords | None = None,
) -> npt.NDArray[np.bool_]:
    """Return a column of yes and no as booleans. Raises `DataError` for any other cell."""
    cells = [cell.strip().lower() for cell in table.columns[name]]
    for row, cell in enumerate(cells):
        if cell not in yes and cell not in no:
            with one_record(bad, row, "with a label that is neither yes nor no"):
                raise table.wrong(row, name, f"it is none of {', '.join((*yes, *no))}")
    return np.isin(cells, yes)


def _targets(
    table: Table, schema: Schema, bad: BadRecords | None
) -> npt.NDArray[np.int64] | _Floats:
    target = schema.target
    name = target.columns[0]
    if target.kind is Targets.LABELS:
        labels = [flags(table, name, YES, NO, bad) for name in target.columns]
        return np.stack(labels, axis=1).astype(np.float32)
    if target.bounds is not None:
        values = _scaled(table, name, target.bounds, bad)
        for row in np.flatnonzero(np.isnan(values)).tolist():
            with one_record(bad, row, "without the number to learn"):
                raise table.wrong(
                    row, name, "the number to learn is missing: fill it in, or leave the row out"
                )
        return values
    places = _places(table.columns[name], target.values)
    for row in np.flatnonzero(places == len(target.values)).tolist():
        with one_record(bad, row, "of a class that the schema does not have"):
            raise table.wrong(row, name, f"it is none of the classes {', '.join(target.values)}")
    return places


def _scaled(table: Table, name: str, column: Number, bad: BadRecords | None) -> _Floats:
    """Return a column of numbers, scaled to [-1, 1]; nan for missing cells."""
    cells = table.columns[name]
    try:
        values = np.array(cells, dtype=np.float64)
    except ValueError:  # some cells are missing or are not numbers
        values = np.full(len(cells), np.nan)
        for row in range(len(cells)):
            with one_record(bad, row, "with a cell that is not a number"):
                values[row] = table.number(row, name)
    scaled = (np.clip(values, column.least, column.most) - column.least) / column.unit - 1
    return scaled.astype(np.float32)


def _places(cells: Sequence[str], values: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the index of each cell among the values. Cells with any other value get the index after the last."""
    index = {value: place for place, value in enumerate(values)}
    return np.array([index.get(cell.strip(), len(values)) for cell in cells], dtype=np.int64)


def _hashed(cells: Sequence[str], column: Text) -> _Floats:
    """Return hashed texts. They are Murmur hashes with seed 0, the same on every machine."""
    from sklearn.feature_extraction.text import HashingVectorizer  # slow to import

    vectorizer = HashingVectorizer(
        n_features=column.buckets,
        ngram_range=(1, column.ngrams),
        analyzer="char_wb" if column.characters else "word",
        norm="l2",
        alternate_sign=True,
        dtype=np.float32,
    )
    hashed: _Floats = vectorizer.transform(cells).toarray()
    return hashed
