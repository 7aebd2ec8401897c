"""Who has which examples in a run: either every client has a part of one data set, or devices have data of their own.

All of it is a function of the configuration alone, so server and clients agree without messages. A device's own data
are the exception.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from fedsketch.conf import Config
from fedsketch.conf.data.folder import FolderConfig
from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig
from fedsketch.conf.settings import PartitionedSettings
from fedsketch.conf.targets import Targets
from fedsketch.errors import DataError
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.tasks.data import datasets, folder
from fedsketch.tasks.data.examples import Dataset, Examples
from fedsketch.tasks.data.holdout import held_out_by_content, held_out_count, split
from fedsketch.tasks.data.partitions import class_histogram, partition
from fedsketch.tasks.data.public_examples import draw_for_server, read_public, split_test
from fedsketch.tasks.data.shards import side_by_side
from fedsketch.tasks.data.tabular import is_table, schema_of
from fedsketch.tasks.task import Task

_FOLDER_KEY = "data.public_root to a folder of images by class or an .npz file on the server"


class DataShape(NamedTuple):
    """The form of examples: the shape of an example, and how many classes, labels or values a target has."""

    shape: tuple[int, ...]
    classes: int


class FederatedData(ABC):
    """The original data of a run, as they are before frozen features."""

    def __init__(self, config: Config, task: Task[Any], *, only_to_plan: bool = False) -> None:
        """Set the data up. Those that are `only_to_plan` are not downloaded."""
        self._config = config
        self._task = task
        self._only_to_plan = only_to_plan

    # ------------------------------------------------------------------ of clients
    @abstractmethod
    def shard(self, client: int) -> Examples:
        """Return the examples that one client trains on."""

    @abstractmethod
    def local_test(self, client: int) -> Examples:
        """Return the examples of one client that are held out of training, for evaluations on devices."""

    @property
    @abstractmethod
    def examples(self) -> int:
        """The number of examples that all clients together train on, or a public upper bound on it."""

    @property
    @abstractmethod
    def largest_shard(self) -> int:
        """The largest number of examples that a client trains on, or the public upper bound on it."""

    @property
    @abstractmethod
    def largest_local_test(self) -> int:
        """The largest number of held-out examples of a client. If the sizes are known, a client that cannot hold out
        any is an error."""

    @abstractmethod
    def histogram(self) -> torch.Tensor:
        """Return the number of examples per client and class, or per client if there are no classes. It has no rows if
        nobody else sees what devices have."""

    # ------------------------------------------------------------------ of the server
    @property
    @abstractmethod
    def data_shape(self) -> DataShape:
        """The form of an example."""

    @property
    @abstractmethod
    def test(self) -> Examples:
        """The server's test examples."""

    @property
    @abstractmethod
    def validation(self) -> Examples | None:
        """The server's examples for choosing the best model (`validation.examples`). They are neither test examples
        nor examples of a client."""

    @abstractmethod
    def public(self) -> Examples:
        """Return the server's public examples, which belong to no client (`tasks.data.public_examples`). A device never
        uses them."""

    @cached_property
    def dataset(self) -> Dataset:
        """The data set that the server has."""
        dataset = self._load()
        for examples in (dataset.train, dataset.test):
            self._task.check(dataset.name, examples, dataset.classes)
        return dataset

    def _load(self) -> Dataset:
        data, seed = self._config.data, self._config.seed
        if not self._only_to_plan:
            return datasets.load(data, seed)
        # A plan needs the real data if the guarantee depends on the sizes of shards, or if public examples are used.
        public = isinstance(data, PartitionedSettings) and data.public > 0
        exact = self._config.privacy.unit is Unit.EXAMPLE or public or data.public_root is not None
        return datasets.load_to_plan(data, seed, exact=exact)

    def public_below(self, root: str, classes: Sequence[str]) -> Examples:
        """Return the public examples in a folder of the server."""
        data = self._config.data
        schema = schema_of(data) if is_table(data) else None
        return read_public(root, self.dataset, self.data_shape.shape, classes, schema)

    def split_examples(self, examples: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which of a client's examples it trains on, and which it holds out."""
        return split(examples, self.held_out_fraction, self._config.seed)

    @property
    def held_out_fraction(self) -> float:
        """The fraction of each client's examples that is held out; 0 if devices do not evaluate."""
        settings = self._config.evaluation
        return settings.held_out if isinstance(settings, FederatedEvaluationConfig) else 0.0


class PartitionedData(FederatedData):
    """One data set that every machine of a run can load whole. Each client has a part of it."""

    def shard(self, client: int) -> Examples:
        return self._part(client, self.train_indices)

    def local_test(self, client: int) -> Examples:
        return self._part(client, self.held_out_indices)

    def _part(self, client: int, indices: Sequence[torch.Tensor]) -> Examples:
        if not 0 <= client < len(indices):
            raise DataError(
                f"data={self._config.data.name} is partitioned among clients 0 to {len(indices) - 1}, and this node "
                f"is {client}: start it with its own number, as in fedsketch-node --node-config partition-id=0."
            )
        return self.dataset.train.take(indices[client])

    @property
    def examples(self) -> int:
        return sum(map(len, self.train_indices))

    @property
    def largest_shard(self) -> int:
        return max(map(len, self.train_indices))

    @property
    def largest_local_test(self) -> int:
        sizes = [len(indices) for indices in self.held_out_indices]
        if not min(sizes):
            fewest = min(map(len, self.train_indices))
            raise DataError(
                f"A client with {fewest} examples has none to hold out for evaluations on devices: lower "
                "clients.total, or set another data.partition or evaluation=server."
            )
        return max(sizes)

    def histogram(self) -> torch.Tensor:
        targets, classes = self.dataset.train.targets, self.dataset.classes
        if self.dataset.train.kind_of_targets is not Targets.CLASSES:  # as if there were one class
            targets, classes = torch.zeros(len(targets), dtype=torch.int64), 1
        return class_histogram(targets, self.train_indices, classes)

    # ------------------------------------------------------------------ all clients together, for simulations
    @cached_property
    def train(self) -> Examples:
        """The examples that all clients train on, client by client."""
        return self.dataset.train.take(torch.cat(self.train_indices))

    @cached_property
    def spans(self) -> list[range]:
        """The positions of each client's examples in `train`."""
        return side_by_side([len(indices) for indices in self.train_indices])

    # ------------------------------------------------------------------ the server
    @property
    def data_shape(self) -> DataShape:
        return DataShape(self.dataset.train.shape, self.dataset.classes)

    @property
    def test(self) -> Examples:
        return self.dataset.test

    @property
    def validation(self) -> Examples | None:
        if not self._config.validation.examples:
            return None
        return self.dataset.train.take(self._server_indices[0][1])

    def public(self) -> Examples:
        data = self._config.data
        if data.public_root is not None:
            names = tuple(map(str, range(self.data_shape.classes)))
            return self.public_below(data.public_root, names)
        if isinstance(data, PartitionedSettings) and data.public:
            return self.dataset.train.take(self._server_indices[0][0])
        raise DataError(
            f"The run needs public data: set data.public to a number of examples to hold out, or {_FOLDER_KEY}."
        )

    # ------------------------------------------------------------------ who has what
    @property
    def train_indices(self) -> list[torch.Tensor]:
        """The indices of the examples that each client trains on."""
        return self._split_indices[0]

    @property
    def held_out_indices(self) -> list[torch.Tensor]:
        """The indices of the examples that each client holds out."""
        return self._split_indices[1]

    @cached_property
    def _split_indices(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        whole = self.client_indices
        if not self.held_out_fraction:
            return whole, [torch.empty(0, dtype=torch.int64)] * len(whole)
        chosen = [self.split_examples(len(indices)) for indices in whole]
        pairs = [
            (own[first], own[second]) for own, (first, second) in zip(whole, chosen, strict=True)
        ]
        return [first for first, _ in pairs], [second for _, second in pairs]

    @cached_property
    def client_indices(self) -> list[torch.Tensor]:
        """The indices of each client's examples in the training set, including those that it holds out."""
        data = self._config.data
        if not isinstance(data, PartitionedSettings):
            raise DataError(
                f"Nothing says how data set {data.name} is distributed over the clients: "
                "derive its settings from fedsketch.PartitionedSettings."
            )
        settings = data.partition
        options = {
            "alpha": settings.alpha,
            "shards_per_client": settings.shards_per_client,
            "classes_per_client": settings.classes_per_client,
            "exponent": settings.exponent,
            "strictness": settings.strictness,
        }
        targets, groups = self.dataset.train.targets, self.dataset.groups
        server_has = data.public or self._config.validation.examples
        rest = self._server_indices[1] if server_has else None
        if rest is not None:
            targets, groups = targets[rest], None if groups is None else groups[rest]
        indices = partition(
            targets,
            self._config.clients.total,
            settings.scheme,
            self._config.seed,
            groups=groups,
            **{key: value for key, value in options.items() if value is not None},  # type: ignore[arg-type]
        )
        return indices if rest is None else [rest[part] for part in indices]

    @cached_property
    def _server_indices(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The indices of the public examples and of the validation examples, and those of the rest, which clients
        have."""
        data = self._config.data
        assert isinstance(data, PartitionedSettings)
        counts = (data.public, self._config.validation.examples)
        return draw_for_server(self.dataset, counts, self._config.seed)


class DataOnDevices(FederatedData):
    """Data that devices hold. A device reads what its owner put into its folder. `dataset` exists on the server only,
    and no device opens its `root`."""

    def __init__(
        self,
        config: Config,
        settings: FolderConfig,
        task: Task[Any],
        *,
        only_to_plan: bool = False,
    ) -> None:
        super().__init__(config, task, only_to_plan=only_to_plan)
        self._settings = settings

    def shard(self, client: int) -> Examples:
        return self._own(0)

    def local_test(self, client: int) -> Examples:
        return self._own(1)

    def _own(self, half: int) -> Examples:
        """Return the examples on which this device trains (half 0), or those that it holds out (half 1). If the unit
        is the example, each keeps its place, and the places of the other half do not count."""
        data, targets = self._settings, self._config.task.targets
        most = data.largest_shard if self._by_example else None
        own = folder.own(data.shape, data.class_names, targets, most, data.fingerprint)
        if not self._by_example:
            there = own.there()
            if not len(there):
                raise DataError("This device has no example that can be used.")
            return there.take(self.split_examples(len(there))[half])
        held_out = held_out_by_content(own, self.held_out_fraction, self._config.seed)
        return own.only(held_out if half else ~held_out)

    @property
    def _by_example(self) -> bool:
        return self._config.privacy.unit is Unit.EXAMPLE

    @property
    def examples(self) -> int:
        return self._settings.largest_shard * self._config.clients.total

    @property
    def largest_shard(self) -> int:
        return self._settings.largest_shard

    @property
    def largest_local_test(self) -> int:
        if self._by_example:  # a hash decides for each example, so it may hold out all of them
            return self._settings.largest_shard
        return max(1, held_out_count(self._settings.largest_shard, self.held_out_fraction))

    def histogram(self) -> torch.Tensor:
        return torch.empty(0, len(self._settings.class_names))

    @property
    def data_shape(self) -> DataShape:
        return DataShape(self._settings.shape, len(self._settings.class_names))

    @property
    def test(self) -> Examples:
        return self.dataset.test if self._split_test is None else self._split_test[1]

    @property
    def validation(self) -> Examples | None:
        return None if self._split_test is None else self._split_test[0]

    def public(self) -> Examples:
        if self._settings.public_root is None:
            raise DataError(f"The run needs public data: set {_FOLDER_KEY}.")
        return self.public_below(self._settings.public_root, self._settings.class_names)

    @cached_property
    def _split_test(self) -> tuple[Examples, Examples] | None:
        """The examples for validation and for the test, because the server has no training examples. None if the test
        set is not split."""
        count = self._config.validation.examples
        return split_test(self.dataset.test, count, self._config.seed) if count else None


def data_of(config: Config, task: Task[Any], *, only_to_plan: bool = False) -> FederatedData:
    """Return the data of a run."""
    if isinstance(config.data, FolderConfig):
        return DataOnDevices(config, config.data, task, only_to_plan=only_to_plan)
    return PartitionedData(config, task, only_to_plan=only_to_plan)
