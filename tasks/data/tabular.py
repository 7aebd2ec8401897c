"""Data sets that are tables: one that is partitioned over simulated clients, or tables that devices have themselves.

The server's copy of the schema decides what a run learns from. A device has its own copy, from its owner. The device's
data card contains the schema's fingerprint, and so does a message from the server. No row is read unless the two are
the same. Real devices are never sent the name of a file or a column.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import numpy as np
import numpy.typing as npt
import torch

from fedsketch.conf import Config
from fedsketch.conf.data.csv import CsvConfig
from fedsketch.conf.data.folder import FolderConfig
from fedsketch.conf.data.text import TextConfig
from fedsketch.conf.schema import Randomness
from fedsketch.conf.settings import DataSettings
from fedsketch.conf.table_settings import TableSettings
from fedsketch.conf.targets import Targets
from fedsketch.conf.task.regression import RegressionConfig
from fedsketch.errors import DataError
from fedsketch.tasks.data.bad_records import BadRecords
from fedsketch.tasks.data.columns import examples_of, flags
from fedsketch.tasks.data.examples import Dataset, Examples
from fedsketch.tasks.data.schema import Schema, Target, Text, beside, load_schema
from fedsketch.tasks.data.tables import Table, read_table

SCHEMA_VARIABLE = "FEDSKETCH_SCHEMA"
_STREAM = 2  # a random stream of the seed that partition and public data do not use
_TESTED, _TRAINED = ("test", "1", "true", "yes"), ("train", "0", "false", "no")

_Ints = npt.NDArray[np.int64]


def load(settings: TableSettings, seed: int) -> Dataset:
    """Return the table at `root`, split into training and test examples."""
    schema = schema_of(settings)
    table = read_table(_root(settings), schema)
    examples = examples_of(table, schema)
    train, tested = _split(settings, table, schema, seed)
    test = examples.take(torch.from_numpy(tested))
    if settings.test_root is not None:
        test = read_examples(Path(settings.test_root).expanduser(), schema)
    names, groups = _groups(table, schema)
    return Dataset(
        settings.name,
        examples.take(torch.from_numpy(train)),
        test,
        len(schema.class_names),
        class_names=schema.class_names,
        groups=None if groups is None else torch.from_numpy(groups[train]),
        group_names=names,
    )


def read_examples(path: Path, schema: Schema, bad: BadRecords | None = None) -> Examples:
    """Return all rows of a table as examples. With `bad`, each is in a place, and those that cannot be used leave
    theirs blank."""
    return examples_of(read_table(path, schema, bad=bad), schema, bad)


def is_table(settings: DataSettings) -> TypeGuard[TableSettings | FolderConfig]:
    """Return whether the server has a schema for the data."""
    if isinstance(settings, FolderConfig):
        return settings.schema is not None
    return isinstance(settings, TableSettings)


def schema_of(settings: TableSettings | FolderConfig) -> Schema:
    """Return the server's schema, from its file, or from the settings of data=text."""
    if isinstance(settings, TextConfig):
        column = Text(settings.buckets, settings.ngrams, settings.characters)
        classes = tuple(str(name).strip() for name in settings.classes)
        return Schema({settings.text: column}, Target(Targets.CLASSES, (settings.label,), classes))
    assert isinstance(settings, CsvConfig | FolderConfig)
    if settings.schema is not None:
        return load_schema(Path(settings.schema).expanduser())
    return load_schema(beside(_root(settings)))


def schema_beside(path: Path) -> Schema:
    """Return the schema of a device's own table, from FEDSKETCH_SCHEMA or from the file beside the table."""
    return load_schema(Path(os.environ.get(SCHEMA_VARIABLE) or beside(path)))


def own_table(path: Path, fingerprint: str, bad: BadRecords | None = None) -> Examples:
    """Return the examples of a device's own table, for a run with this fingerprint, as `read_examples` does."""
    schema = schema_beside(path)
    if schema.fingerprint != fingerprint:
        raise DataError(
            f"The schema of {path} has changed since its data card was made: describe the data again with "
            "fedsketch-enroll --data."
        )
    return read_examples(path, schema, bad)


def resolved(config: Config) -> Config:
    """Return the configuration of a run, completed by the server's copy of the schema. Never called on a device."""
    data, task = config.data, config.task
    if not is_table(data):
        return config
    schema = schema_of(data)
    if isinstance(data, FolderConfig):
        data = _with_schema(schema, data)
    elif devices_are_real(config):
        data = replace(data, on_devices=_on_devices(config, schema))
    if isinstance(task, RegressionConfig) and schema.unit is not None:
        task = replace(task, unit=schema.unit)
    return replace(config, data=data, task=task)


def devices_are_real(config: Config) -> bool:
    """Return whether the clients of a table are real devices with policies and ledgers, which accept no path from a
    message."""
    return config.runtime.name == "processes" and config.privacy.randomness is not Randomness.SEEDED


def write_parts(config: Config, parts: Sequence[torch.Tensor], files: Sequence[Path]) -> None:
    """Write the rows of each client to a .csv file of its own, with the schema beside it."""
    data = config.data
    assert isinstance(data, TableSettings)
    schema = schema_of(data)
    table = read_table(_root(data), schema)
    train, _ = _split(data, table, schema, config.seed)
    for part, file in zip(parts, files, strict=True):
        table.write(file, schema.needed, train[part.numpy()].tolist())
        beside(file).write_text(replace(schema, delimiter=",").to_yaml(), encoding="utf-8")


def _on_devices(config: Config, schema: Schema) -> FolderConfig:
    from fedsketch.tasks.workload import Workload

    most = max(map(len, Workload(config).partitioned.client_indices))
    return _with_schema(schema, FolderConfig("folder", None, (1,), 1, most, None))


def _with_schema(schema: Schema, data: FolderConfig) -> FolderConfig:
    """Return the settings with the parts of the schema that devices may know."""
    return replace(
        data,
        shape=schema.shape,
        classes=schema.public_classes,
        fingerprint=schema.fingerprint,
    )


def _root(settings: TableSettings | FolderConfig) -> Path:
    if settings.root is None:
        raise DataError(
            f"data={settings.name} needs a table: set data.root to a .csv file, or for texts to a folder of .txt "
            "files by class."
        )
    path = Path(settings.root).expanduser()
    if not path.exists():
        raise DataError(f"There is no table {path}: set data.root to one that exists.")
    return path


def _split(settings: TableSettings, table: Table, schema: Schema, seed: int) -> tuple[_Ints, _Ints]:
    """Return the training rows and the test rows, in ascending order."""
    count = len(table)
    tested = np.zeros(count, dtype=bool)
    if settings.test_root is not None:
        return np.arange(count), np.arange(0)
    if schema.test is not None:
        if schema.test not in table.columns:
            raise DataError(
                f"{table.path} has no column {schema.test}, which says what to test on."
            )
        tested = flags(table, schema.test, _TESTED, _TRAINED)
    else:
        order = np.random.default_rng((seed, _STREAM)).permutation(count)
        tested[order[: max(1, round(settings.test_share * count))]] = True
    if tested.all() or not tested.any():
        raise DataError(
            f"{table.path} has {int(tested.sum())} rows to test on and {int((~tested).sum())} to train on: give it "
            "some of each."
        )
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def _groups(table: Table, schema: Schema) -> tuple[tuple[str, ...], _Ints | None]:
    """Return the names of the natural groups, and the number of each row's group."""
    if schema.client is None:
        return (), None
    if schema.client not in table.columns:
        raise DataError(f"{table.path} has no column {schema.client}, which says whose row it is.")
    cells = [cell.strip() for cell in table.columns[schema.client]]
    names, groups = np.unique(cells, return_inverse=True)
    return tuple(map(str, names)), groups.astype(np.int64)
