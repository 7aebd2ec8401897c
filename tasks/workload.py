"""The job of a configuration: its task, its data, the part of each client, and its model."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from fedsketch.conf import Config
from fedsketch.conf.data.folder import FolderConfig
from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig
from fedsketch.conf.settings import DataSettings, PartitionedSettings
from fedsketch.conf.targets import Targets
from fedsketch.errors import DataError, DeviceError
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.tasks.built_in import make_task
from fedsketch.tasks.data import datasets, folder
from fedsketch.tasks.data.examples import Dataset, Examples
from fedsketch.tasks.data.partitions import class_histogram, partition
from fedsketch.tasks.data.public_examples import held_out, read_public, split_test
from fedsketch.tasks.data.shards import Shards, side_by_side
from fedsketch.tasks.data.tabular import is_table, schema_of
from fedsketch.tasks.models import networks
from fedsketch.tasks.models.features import own_edition, seen_through, shape_after
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.models.interface import Interface
from fedsketch.tasks.models.trainable_part import with_trained_part
from fedsketch.tasks.models.weights import load_weights
from fedsketch.tasks.scores import held_out_count, split
from fedsketch.tasks.task import Task
from fedsketch.tasks.trial import try_out


class DataShape(NamedTuple):
    """The form of examples: the shape of an example, and how many classes, labels or values a target has."""

    shape: tuple[int, ...]
    classes: int


class Assignment(NamedTuple):
    """A configuration, and the kind of its data if it is known without reading them. On a device it is known from the
    owner's data card."""

    config: Config
    kind: DataShape | None = None


class Workload:
    """The task, data and model of a configuration. All of it is a function of the configuration alone, so server and
    clients agree without messages.

    There are two exceptions. With data=folder a device's shard is what its owner put there, and `dataset` exists on
    the server only: no device opens its `root`. And the file `model.weights` is on the server only. A job that is
    `only_to_plan` downloads nothing.

    `dataset` and `kind` describe the original data. The examples that train or test a model have passed
    `model.features` (`tasks.models.features`).
    """

    def __init__(
        self, config: Config, kind: DataShape | None = None, *, only_to_plan: bool = False
    ) -> None:
        self._config = config
        self._kind = kind
        self._only_to_plan = only_to_plan

    @cached_property
    def task(self) -> Task[Any]:
        """The task, which defines loss and metrics."""
        return make_task(self._config.task)

    @cached_property
    def dataset(self) -> Dataset:
        dataset = self._load()
        for examples in (dataset.train, dataset.test):
            self.task.check(dataset.name, examples, dataset.classes)
        return dataset

    def _load(self) -> Dataset:
        data, seed = self._config.data, self._config.seed
        if not self._only_to_plan:
            return datasets.load(data, seed)
        # A plan needs the real data if the guarantee depends on the sizes of shards, or if public examples are used.
        public = isinstance(data, PartitionedSettings) and data.public > 0
        exact = self._config.privacy.unit is Unit.EXAMPLE or public or data.public_root is not None
        return datasets.load_to_plan(data, seed, exact=exact)

    @cached_property
    def test(self) -> Examples:
        """The server's test examples."""
        split = self._split_test
        return self._seen(self.dataset.test if split is None else split[1])

    @cached_property
    def validation(self) -> Examples | None:
        """The server's examples for choosing the best model (`validation.examples`). They are neither test examples
        nor examples of a client."""
        if not self._config.validation.examples:
            return None
        split = self._split_test
        if split is not None:
            return self._seen(split[0])
        return self._seen(self.dataset.train.take(self._held_out[0][1]))

    @cached_property
    def _split_test(self) -> tuple[Examples, Examples] | None:
        """The examples for validation and for the test, if the server has no training examples. None if the test set
        is not split."""
        count = self._config.validation.examples
        if not count or isinstance(self._config.data, PartitionedSettings):
            return None
        return split_test(self.dataset.test, count, self._config.seed)

    @cached_property
    def public(self) -> Examples:
        """The server's public examples, which belong to no client (`tasks.data.public_examples`). A device never uses
        them."""
        return self._seen(self._public())

    def _public(self) -> Examples:
        data = self._config.data
        if data.public_root is not None:
            shape, classes = self.data_shape
            names = tuple(map(str, range(classes)))
            if isinstance(data, FolderConfig):
                names = data.class_names
            schema = schema_of(data) if is_table(data) else None
            return read_public(data.public_root, self.dataset, shape, names, schema)
        if isinstance(data, PartitionedSettings) and data.public:
            return self.dataset.train.take(self._held_out[0][0])
        raise DataError(_no_public_data(data))

    def shard(self, client: int) -> Examples:
        """Return the examples that one client trains on."""
        return self._seen(self._own(client, 0))

    def local_test(self, client: int) -> Examples:
        """Return the examples of one client that are held out of training, for evaluations on devices."""
        return self._seen(self._own(client, 1))

    def _own(self, client: int, half: int) -> Examples:
        """Return the examples on which a client trains (half 0), or those that it holds out (half 1)."""
        data = self._config.data
        if isinstance(data, FolderConfig):
            bounded = self._config.privacy.unit is Unit.EXAMPLE
            most = data.largest_shard if bounded else None
            kind = self._config.task.targets
            own = folder.own(data.shape, data.class_names, kind, most, data.fingerprint)
            return own.take(self._split(len(own))[half])
        parts = self._halves[half]
        if not 0 <= client < len(parts):
            raise DataError(
                f"data={data.name} is partitioned among clients 0 to {len(parts) - 1}, and this node is {client}: "
                "start it with its own number, as in fedsketch-node --node-config partition-id=0."
            )
        return self.dataset.train.take(parts[client])

    def _split(self, examples: int) -> tuple[torch.Tensor, torch.Tensor]:
        return split(examples, self._held_out_share, self._config.seed)

    @property
    def _held_out_share(self) -> float:
        """The share of each client's examples that is held out; 0 if devices do not evaluate."""
        settings = self._config.evaluation
        return settings.held_out if isinstance(settings, FederatedEvaluationConfig) else 0.0

    @cached_property
    def train(self) -> Examples:
        """The examples of all clients, client by client. Only simulations of whole cohorts use them, never a
        device."""
        return self._seen(self.dataset.train.take(torch.cat(self._parts)))

    def shards(self, clients: Sequence[int]) -> Shards:
        """Return the examples that several clients train on."""
        return Shards(self.train, tuple(self._spans[client] for client in clients))

    def size(self, client: int) -> int:
        """Return how many examples a client trains on."""
        return len(self._spans[client])

    @cached_property
    def _spans(self) -> list[range]:
        """The positions of each client's examples in `train`."""
        return side_by_side([len(part) for part in self._parts])

    @property
    def examples(self) -> int:
        """The number of examples that all clients together train on. If devices have data of their own, a public upper
        bound on it."""
        if isinstance(self._config.data, FolderConfig):
            return self._config.data.largest_shard * self._config.clients.total
        return sum(map(len, self._parts))

    @property
    def largest_shard(self) -> int:
        """The largest number of examples that a client trains on, or the public upper bound on it."""
        if isinstance(self._config.data, FolderConfig):
            return self._config.data.largest_shard
        return max(map(len, self._parts))

    @property
    def largest_local_test(self) -> int:
        """The largest number of held-out examples of a client. If the sizes are known, a client that cannot hold out
        any is an error."""
        data, share = self._config.data, self._held_out_share
        if isinstance(data, FolderConfig):
            return max(1, held_out_count(data.largest_shard, share))
        tests = self._halves[1]
        if not min(map(len, tests)):
            fewest = min(map(len, self._parts))
            raise DataError(
                f"A client with {fewest} examples has none to hold out for evaluations on devices: lower "
                "clients.total, or set another data.partition or evaluation=server."
            )
        return max(map(len, tests))

    def histogram(self) -> torch.Tensor:
        """Return the number of examples per client and class, or per client if there are no classes. It has no rows if
        devices have data of their own, which nobody else sees."""
        if isinstance(self._config.data, FolderConfig):
            return torch.empty(0, len(self._config.data.class_names))
        targets, classes = self.dataset.train.targets, self.dataset.classes
        if self.dataset.train.kind_of_targets is not Targets.CLASSES:  # as if there were one class
            targets, classes = torch.zeros(len(targets), dtype=torch.int64), 1
        return class_histogram(targets, self._parts, classes)

    def model(self) -> FlatModel:
        """Return the initial model, on the configured processor. `model.weights` are loaded on the server only;
        devices get them with the model."""
        module = networks.build(self._config.model, *self._model_kind, self._config.seed)
        if self._config.model.weights is not None:
            load_weights(module, self._config.model.weights)
        module = with_trained_part(module, self._config.model, self._config.seed)
        return FlatModel(module, _device(self._config.device), self.task)

    def try_out(self, model: FlatModel) -> None:
        """Raise `TaskError` if model, task and the server's data do not fit together. Called before a run."""
        few = self.dataset.test.take(torch.arange(min(2, len(self.dataset.test))))
        try_out(self._config, model, self._model_kind[1], self._seen(few))

    @property
    def parameters(self) -> int:
        """The number of parameters of the model, computed without allocating it."""
        return networks.parameters(self._config.model, *self._model_kind)

    @property
    def features(self) -> str | None:
        """The edition of the feature map in front of the model, if it is one of an installed package."""
        return own_edition(self._config.model.features, self.data_shape.shape)

    @property
    def interface(self) -> Interface:
        """The inputs and outputs of the model, for those who load it without the data."""
        shape, outputs = self._model_kind
        dataset = self.dataset
        return Interface(
            shape=tuple(self.data_shape.shape),
            network_shape=tuple(shape),
            inputs=str(dataset.test.inputs.dtype).removeprefix("torch."),
            outputs=outputs,
            classes=dataset.class_names or tuple(map(str, range(dataset.classes))),
            mean=dataset.mean,
            deviation=dataset.deviation,
        )

    @property
    def data_shape(self) -> DataShape:
        """The form of an example. Reads the data only if the form was not given."""
        data = self._config.data
        if self._kind is not None:
            return self._kind
        if isinstance(data, FolderConfig):
            return DataShape(data.shape, len(data.class_names))
        return DataShape(self.dataset.train.shape, self.dataset.classes)

    def _seen(self, examples: Examples) -> Examples:
        return seen_through(self._config.model.features, examples)

    @property
    def _model_kind(self) -> tuple[tuple[int, ...], int]:
        """The shape of the model's input, and the number of its outputs."""
        shape, classes = self.data_shape
        return shape_after(self._config.model.features, shape), self.task.outputs(classes)

    @property
    def parts(self) -> list[torch.Tensor]:
        """The indices of each client's examples in the training set, including those that it holds out. Not available
        if devices have data of their own."""
        return self._all_parts

    @property
    def _parts(self) -> list[torch.Tensor]:
        """The indices of the examples that each client trains on."""
        return self._halves[0]

    @cached_property
    def _halves(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The indices of the examples that each client trains on, and of those that it holds out."""
        whole = self._all_parts
        if not self._held_out_share:
            return whole, [torch.empty(0, dtype=torch.int64)] * len(whole)
        split = [self._split(len(part)) for part in whole]
        trained, held_out = (
            [part[chosen[half]] for part, chosen in zip(whole, split, strict=True)]
            for half in (0, 1)
        )
        return trained, held_out

    @cached_property
    def _all_parts(self) -> list[torch.Tensor]:
        """The indices of each client's examples."""
        data = self._config.data
        if not isinstance(data, PartitionedSettings):
            raise DataError(
                f"Nothing says how data set {data.name} is distributed over the clients: "
                "derive its settings from fedsketch.conf.settings.PartitionedSettings."
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
        rest = self._held_out[1] if data.public or self._config.validation.examples else None
        if rest is not None:
            targets, groups = targets[rest], None if groups is None else groups[rest]
        parts = partition(
            targets,
            self._config.clients.total,
            settings.scheme,
            self._config.seed,
            groups=groups,
            **{key: value for key, value in options.items() if value is not None},  # type: ignore[arg-type]
        )
        return parts if rest is None else [rest[part] for part in parts]

    @cached_property
    def _held_out(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The indices of the public examples and of the validation examples, and those of the rest, which clients
        have."""
        data = self._config.data
        assert isinstance(data, PartitionedSettings)
        counts = (data.public, self._config.validation.examples)
        return held_out(self.dataset, counts, self._config.seed)


def _no_public_data(data: DataSettings) -> str:
    folder_key = "data.public_root to a folder of images by class or an .npz file on the server"
    if isinstance(data, PartitionedSettings):
        return f"The run needs public data: set data.public to a number of examples to hold out, or {folder_key}."
    return f"The run needs public data: set {folder_key}."


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise DeviceError(
            f"There is no device '{name}' on this machine: set device=auto or device=cpu."
        ) from error
