"""The workload of a configuration: its task, its data behind frozen features, and its model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from fedsketch.conf import Config
from fedsketch.errors import DeviceError
from fedsketch.tasks.built_in import make_task
from fedsketch.tasks.data.examples import Dataset, Examples
from fedsketch.tasks.data.federated import DataShape, FederatedData, PartitionedData, data_of
from fedsketch.tasks.data.shards import Shards
from fedsketch.tasks.models import networks
from fedsketch.tasks.models.features import own_edition, seen_through, shape_after
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.models.interface import Interface
from fedsketch.tasks.models.trainable_part import with_trained_part
from fedsketch.tasks.models.weights import load_weights
from fedsketch.tasks.task import Task
from fedsketch.tasks.trial import try_out


class Assignment(NamedTuple):
    """A configuration, and the form of its data if it is known without reading them. On a device it is known from the
    owner's data card."""

    config: Config
    data_shape: DataShape | None = None


class Workload:
    """The task, data and model of a configuration. All of it is a function of the configuration alone, so server and
    clients agree without messages.

    There are two exceptions: data that devices hold (`tasks.data.federated`), and the file `model.weights`, which is on
    the server only. A workload that is `only_to_plan` downloads nothing.

    `dataset` and `data_shape` describe the original data. The examples that train or test a model have passed
    `model.features` (`tasks.models.features`).
    """

    def __init__(
        self, config: Config, data_shape: DataShape | None = None, *, only_to_plan: bool = False
    ) -> None:
        self._config = config
        self._data_shape = data_shape
        self._only_to_plan = only_to_plan

    @cached_property
    def task(self) -> Task[Any]:
        """The task, which defines loss and metrics."""
        return make_task(self._config.task)

    @cached_property
    def data(self) -> FederatedData:
        """Who has which examples."""
        return data_of(self._config, self.task, only_to_plan=self._only_to_plan)

    @property
    def dataset(self) -> Dataset:
        """The data set that the server has."""
        return self.data.dataset

    @property
    def data_shape(self) -> DataShape:
        """The form of an example. Reads the data only if it was not given."""
        return self.data.data_shape if self._data_shape is None else self._data_shape

    # ------------------------------------------------------------------ examples, behind the features
    @cached_property
    def test(self) -> Examples:
        """The server's test examples."""
        return self._seen(self.data.test)

    @cached_property
    def validation(self) -> Examples | None:
        """The server's examples for choosing the best model."""
        held = self.data.validation
        return None if held is None else self._seen(held)

    @cached_property
    def public(self) -> Examples:
        """The server's public examples."""
        return self._seen(self.data.public())

    def shard(self, client: int) -> Examples:
        """Return the examples that one client trains on."""
        return self._seen(self.data.shard(client))

    def local_test(self, client: int) -> Examples:
        """Return the examples of one client that are held out of training, for evaluations on devices."""
        return self._seen(self.data.local_test(client))

    def _seen(self, examples: Examples) -> Examples:
        return seen_through(self._config.model.features, examples)

    # ------------------------------------------------------------------ all clients together, for simulations
    @cached_property
    def train(self) -> Examples:
        """The examples of all clients, client by client. Only simulations of whole cohorts use them, never a
        device."""
        return self._seen(self.partitioned.train)

    def shards(self, clients: Sequence[int]) -> Shards:
        """Return the examples that several clients train on."""
        spans = self.partitioned.spans
        return Shards(self.train, tuple(spans[client] for client in clients))

    def size(self, client: int) -> int:
        """Return how many examples a client trains on."""
        return len(self.partitioned.spans[client])

    @property
    def partitioned(self) -> PartitionedData:
        """The data, if every client has a part of one data set."""
        assert isinstance(self.data, PartitionedData)  # a simulation has no devices
        return self.data

    # ------------------------------------------------------------------ how many
    @property
    def examples(self) -> int:
        """The number of examples that all clients together train on, or a public upper bound on it."""
        return self.data.examples

    @property
    def largest_shard(self) -> int:
        """The largest number of examples that a client trains on, or the public upper bound on it."""
        return self.data.largest_shard

    @property
    def largest_local_test(self) -> int:
        """The largest number of held-out examples of a client."""
        return self.data.largest_local_test

    def histogram(self) -> torch.Tensor:
        """Return the number of examples per client and class."""
        return self.data.histogram()

    # ------------------------------------------------------------------ the model
    def model(self) -> FlatModel:
        """Return the initial model, on the configured processor. `model.weights` are loaded on the server only;
        devices get them with the model."""
        settings, seed = self._config.model, self._config.seed
        module = networks.build(settings, *self._network_shape, seed)
        if settings.weights is not None:
            load_weights(module, settings.weights)
        module = with_trained_part(module, settings, seed)
        return FlatModel(module, _device(self._config.device), self.task)

    def try_out(self, model: FlatModel) -> None:
        """Raise `TaskError` if model, task and the server's data do not fit together. Called before a run."""
        few = self.dataset.test.take(torch.arange(min(2, len(self.dataset.test))))
        try_out(self._config, model, self._network_shape[1], self._seen(few))

    @property
    def parameters(self) -> int:
        """The number of parameters of the model, computed without allocating it."""
        return networks.parameters(self._config.model, *self._network_shape)

    @property
    def features(self) -> str | None:
        """The edition of the feature map in front of the model, if it is one of an installed package."""
        return own_edition(self._config.model.features, self.data_shape.shape)

    @property
    def interface(self) -> Interface:
        """The inputs and outputs of the model, for those who load it without the data."""
        shape, outputs = self._network_shape
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
    def _network_shape(self) -> tuple[tuple[int, ...], int]:
        """The shape of the model's input, and the number of its outputs."""
        shape, classes = self.data_shape
        return shape_after(self._config.model.features, shape), self.task.outputs(classes)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise DeviceError(
            f"There is no device '{name}' on this machine: set device=auto or device=cpu."
        ) from error
