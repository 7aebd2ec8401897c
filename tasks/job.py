"""A configuration's job: its task, its data, who has which part of them, and its model."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch

from fedsketch.conf import Config
from fedsketch.conf.data.folder import FolderConfig
from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig
from fedsketch.conf.settings import DataSettings, PartitionedSettings
from fedsketch.conf.targets import Targets
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.tasks import datasets, folder, models
from fedsketch.tasks.built_in_tasks import make_task
from fedsketch.tasks.errors import DataError, DeviceError
from fedsketch.tasks.examples import Dataset, Examples
from fedsketch.tasks.features import own_edition, seen_through, shape_after
from fedsketch.tasks.flat import FlatModel
from fedsketch.tasks.interface import Interface
from fedsketch.tasks.local_tests import held_out_count, split
from fedsketch.tasks.partitions import class_histogram, partition
from fedsketch.tasks.public import held_out, read_public, split_test
from fedsketch.tasks.shards import Shards, side_by_side
from fedsketch.tasks.tabular import is_table, schema_of
from fedsketch.tasks.task import Task
from fedsketch.tasks.trained import with_trained_part
from fedsketch.tasks.trial import try_out
from fedsketch.tasks.weights import load_weights


class Kind(NamedTuple):
    """The form of examples."""

    shape: tuple[int, ...]
    classes: int  # or labels, or values


class Assignment(NamedTuple):
    """A configuration, and the kind of its data where that is known without reading them: on a device, from its owner's
    card."""

    config: Config
    kind: Kind | None = None


class Job:
    """Everything here is a function of the configuration alone, so server and clients agree without talking.

    The exception is data=folder: there a device's shard is what its owner put there, and `dataset` is the server's,
    whose `root` no device opens. Given weights (`model.weights`) are the server's too. A job that is `only_to_plan`
    downloads nothing.

    `dataset` and `kind` are as the data are. What trains or tests a model comes through `model.features`
    (`tasks.features`).
    """

    def __init__(
        self, config: Config, kind: Kind | None = None, *, only_to_plan: bool = False
    ) -> None:
        self._config = config
        self._kind = kind
        self._only_to_plan = only_to_plan

    @cached_property
    def task(self) -> Task:
        """The task: loss and metrics."""
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
        # The sizes of shards count where examples are protected; public examples are looked at.
        public = isinstance(data, PartitionedSettings) and data.public > 0
        exact = self._config.privacy.unit is Unit.EXAMPLE or public or data.public_root is not None
        return datasets.load_to_plan(data, seed, exact=exact)

    @cached_property
    def test(self) -> Examples:
        """The server's examples to test on."""
        split = self._split_test
        return self._seen(self.dataset.test if split is None else split[1])

    @cached_property
    def validation(self) -> Examples | None:
        """The server's examples to choose the best model by (`validation.examples`): never among those to test on, and
        no client's."""
        if not self._config.validation.examples:
            return None
        split = self._split_test
        if split is not None:
            return self._seen(split[0])
        return self._seen(self.dataset.train.take(self._held_out[0][1]))

    @cached_property
    def _split_test(self) -> tuple[Examples, Examples] | None:
        """Examples to validate and to test on, where the server has none to train on; None if the test set stays
        whole."""
        count = self._config.validation.examples
        if not count or isinstance(self._config.data, PartitionedSettings):
            return None
        return split_test(self.dataset.test, count, self._config.seed)

    @cached_property
    def public(self) -> Examples:
        """The server's public examples, which are no client's (`tasks.public`). A device never asks for them."""
        return self._seen(self._public())

    def _public(self) -> Examples:
        data = self._config.data
        if data.public_root is not None:
            shape, classes = self.kind
            names = tuple(map(str, range(classes)))
            if isinstance(data, FolderConfig):
                names = data.class_names
            schema = schema_of(data) if is_table(data) else None
            return read_public(data.public_root, self.dataset, shape, names, schema)
        if isinstance(data, PartitionedSettings) and data.public:
            return self.dataset.train.take(self._held_out[0][0])
        raise DataError(_no_public_data(data))

    def shard(self, client: int) -> Examples:
        """The examples that one client trains on."""
        return self._seen(self._own(client, 0))

    def local_test(self, client: int) -> Examples:
        """The examples of one client that are held out of training, for evaluations on devices."""
        return self._seen(self._own(client, 1))

    def _own(self, client: int, half: int) -> Examples:
        """The examples on which a client trains, or those that it holds out."""
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
                f"data={data.name} is shared out among clients 0 to {len(parts) - 1}, and this node is {client}: "
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
        """The examples of all clients, client by client. Only simulations of whole cohorts hold them; a device never
        does."""
        return self._seen(self.dataset.train.take(torch.cat(self._parts)))

    def shards(self, clients: Sequence[int]) -> Shards:
        """The examples that several clients train on."""
        return Shards(self.train, tuple(self._spans[client] for client in clients))

    def size(self, client: int) -> int:
        """How many examples a client trains on."""
        return len(self._spans[client])

    @cached_property
    def _spans(self) -> list[range]:
        """The place of each client's examples in `train`."""
        return side_by_side([len(part) for part in self._parts])

    @property
    def examples(self) -> int:
        """The number of examples that all clients together train on; where devices hold their own, the public bound on
        it."""
        if isinstance(self._config.data, FolderConfig):
            return self._config.data.largest_shard * self._config.clients.total
        return sum(map(len, self._parts))

    @property
    def largest_shard(self) -> int:
        """The number of examples of the client that trains on most, or the public bound on it."""
        if isinstance(self._config.data, FolderConfig):
            return self._config.data.largest_shard
        return max(map(len, self._parts))

    @property
    def largest_local_test(self) -> int:
        """The most held-out examples of a client. If the sizes are known, a client that cannot hold out any is an
        error."""
        data, share = self._config.data, self._held_out_share
        if isinstance(data, FolderConfig):
            return max(1, held_out_count(data.largest_shard, share))
        tests = self._halves[1]
        if not min(map(len, tests)):
            fewest = min(map(len, self._parts))
            raise DataError(
                f"A client with {fewest} examples has none to hold out for evaluations on devices: set fewer "
                "clients.total, another data.partition, or evaluation=server."
            )
        return max(map(len, tests))

    def histogram(self) -> torch.Tensor:
        """Examples per client and class, or per client where there are no classes; no rows where devices hold their
        own, unseen."""
        if isinstance(self._config.data, FolderConfig):
            return torch.empty(0, len(self._config.data.class_names))
        targets, classes = self.dataset.train.targets, self.dataset.classes
        if self.dataset.train.kind_of_targets is not Targets.classes:  # then their numbers alone
            targets, classes = torch.zeros(len(targets), dtype=torch.int64), 1
        return class_histogram(targets, self._parts, classes)

    def model(self) -> FlatModel:
        """The initial model, on the configured device; on a device of a run with given weights, one that these are
        loaded into."""
        module = models.build(self._config.model, *self._model_kind, self._config.seed)
        if self._config.model.weights is not None:
            load_weights(module, self._config.model.weights)
        module = with_trained_part(module, self._config.model, self._config.seed)
        return FlatModel(module, _device(self._config.device), self.task)

    def try_out(self, model: FlatModel) -> None:
        """Raise `TaskError` where model, task and the server's data do not go together; before a run."""
        few = self.dataset.test.take(torch.arange(min(2, len(self.dataset.test))))
        try_out(self._config, model, self._model_kind[1], self._seen(few))

    @property
    def parameters(self) -> int:
        """How many parameters the model has, without making it."""
        return models.parameters(self._config.model, *self._model_kind)

    @property
    def features(self) -> str | None:
        """The edition of the feature map in front of the model, if it is one of an installed package."""
        return own_edition(self._config.model.features, self.kind.shape)

    @property
    def interface(self) -> Interface:
        """The inputs and outputs of the model, for those who load it without the data."""
        shape, outputs = self._model_kind
        dataset = self.dataset
        return Interface(
            shape=tuple(self.kind.shape),
            network_shape=tuple(shape),
            inputs=str(dataset.test.inputs.dtype).removeprefix("torch."),
            outputs=outputs,
            classes=dataset.class_names or tuple(map(str, range(dataset.classes))),
            mean=dataset.mean,
            deviation=dataset.deviation,
        )

    @property
    def kind(self) -> Kind:
        """The form of an example. Reads the data only if the form was not given."""
        data = self._config.data
        if self._kind is not None:
            return self._kind
        if isinstance(data, FolderConfig):
            return Kind(data.shape, len(data.class_names))
        return Kind(self.dataset.train.shape, self.dataset.classes)

    def _seen(self, examples: Examples) -> Examples:
        return seen_through(self._config.model.features, examples)

    @property
    def _model_kind(self) -> tuple[tuple[int, ...], int]:
        """The shape that the model takes, and how many numbers it makes of it."""
        shape, classes = self.kind
        return shape_after(self._config.model.features, shape), self.task.outputs(classes)

    @property
    def parts(self) -> list[torch.Tensor]:
        """The indices of each client's examples among those to train on, whatever it holds out; not where devices hold
        their own."""
        return self._shared_out

    @property
    def _parts(self) -> list[torch.Tensor]:
        """Which examples each client trains on."""
        return self._halves[0]

    @cached_property
    def _halves(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Which examples each client trains on, and which it holds out."""
        whole = self._shared_out
        if not self._held_out_share:
            return whole, [torch.empty(0, dtype=torch.int64)] * len(whole)
        split = [self._split(len(part)) for part in whole]
        trained, held_out = (
            [part[chosen[half]] for part, chosen in zip(whole, split, strict=True)]
            for half in (0, 1)
        )
        return trained, held_out

    @cached_property
    def _shared_out(self) -> list[torch.Tensor]:
        """Which examples each client has."""
        data = self._config.data
        if not isinstance(data, PartitionedSettings):
            raise DataError(
                f"Nothing says how data set {data.name} is spread over the clients: "
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
        """The indices of public examples and of those to validate on, and of all that clients share."""
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
