"""Makes the data card of a device. The owner runs this once; it reads and checks all the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsketch.client.guard.card import DataCard
from fedsketch.conf import Config, compose
from fedsketch.conf.table_settings import TableSettings
from fedsketch.errors import UsageError
from fedsketch.tasks.data import datasets, folder
from fedsketch.tasks.data.schema import Schema, beside, load_schema
from fedsketch.tasks.data.tabular import read_examples, schema_of
from fedsketch.tasks.workload import Workload


def card_of(what: str, classes: str | None = None, schema: Path | None = None) -> DataCard:
    """Return the card of the owner's files at a path, or of a named data set that holds nothing private.

    `classes` is their number, or their names separated by commas, if the data do not show all of them. A table has a
    `schema`, which is looked for beside the table if it is not given.
    """
    path = Path(what)
    if not path.exists():
        return _card_of_named(what)
    if schema is not None or path.suffix == ".csv" or beside(path).exists():
        if classes is not None:
            raise UsageError("--classes is not for tables: their schema names the classes.")
        known = load_schema(beside(path) if schema is None else schema)
        return _card(known, _rounded_up(len(read_examples(path, known))))
    shape, found = folder.survey(Path(what))
    names = found if classes is None else _names(classes)
    kind = folder.kind_of(Path(what))
    examples = folder.read(Path(what), shape, names, kind)
    return DataCard("folder", shape, tuple(names), _rounded_up(len(examples)), kind.value)


def card_for(config: Config) -> DataCard:
    """Return the card of devices for which a run's data set is made."""
    workload = Workload(config)
    if isinstance(config.data, TableSettings) and config.data.on_devices is not None:
        return _card(schema_of(config.data), config.data.on_devices.largest_shard)
    names = getattr(config.data, "class_names", None) or tuple(
        map(str, range(workload.data_shape.classes))
    )
    most = _rounded_up(workload.largest_shard)
    return DataCard(
        config.data.name, workload.data_shape.shape, names, most, config.task.targets.value
    )


def _card(schema: Schema, most: int) -> DataCard:
    kind = schema.target.kind.value
    return DataCard("folder", schema.shape, schema.public_classes, most, kind, schema.fingerprint)


def _card_of_named(name: str) -> DataCard:
    """Return the card of a named data set, for any task and any number of devices that share it."""
    config = compose([f"data={name}"])
    dataset = datasets.load(config.data, config.seed)
    kind = dataset.train.kind_of_targets
    names = dataset.class_names or tuple(map(str, range(dataset.classes)))
    return DataCard(name, dataset.train.shape, names, _rounded_up(len(dataset.train)), kind.value)


def _names(classes: str) -> Sequence[str]:
    if classes.isdigit():
        return tuple(map(str, range(int(classes))))
    return tuple(name.strip() for name in classes.split(","))


def _rounded_up(count: int) -> int:
    """Return the next power of two, because others may learn the card, but not the number of examples."""
    return 1 << (count - 1).bit_length()
