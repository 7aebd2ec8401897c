"""A configuration's job: its data, who has which part of them, and its model."""

from functools import cached_property

import torch

from conf import Config
from conf.schema import SyntheticConfig
from tasks import datasets, models
from tasks.errors import DeviceError
from tasks.examples import Dataset, Examples
from tasks.flat import FlatModel
from tasks.partitions import class_histogram, partition


class Job:
    """Everything here is a function of the configuration alone, so server and clients agree without talking."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @cached_property
    def dataset(self) -> Dataset:
        data = self._config.data
        if isinstance(data, SyntheticConfig):
            return datasets.load(
                "synthetic",
                examples=data.examples,
                test_examples=data.test_examples,
                shape=data.shape,
                classes=data.classes,
                separation=data.separation,
                seed=self._config.seed,
            )
        return datasets.load(data.name, data.root)

    def shard(self, client: int) -> Examples:
        """The examples of one client."""
        return self.dataset.train.take(self._parts[client])

    @property
    def examples(self) -> int:
        """The number of examples of all clients together."""
        return sum(map(len, self._parts))

    @property
    def largest_shard(self) -> int:
        """The number of examples of the client that has most."""
        return max(map(len, self._parts))

    def histogram(self) -> torch.Tensor:
        """Examples per client and class."""
        return class_histogram(self.dataset.train.targets, self._parts, self.dataset.classes)

    def model(self) -> FlatModel:
        """The initial model, on the configured device."""
        module = models.build(
            self._config.model.name,
            input_shape=self.dataset.train.shape,
            classes=self.dataset.classes,
            width=self._config.model.width,
            depth=self._config.model.depth,
            seed=self._config.seed,
        )
        return FlatModel(module, _device(self._config.device))

    @cached_property
    def _parts(self) -> list[torch.Tensor]:
        settings = self._config.data.partition
        options = {
            "alpha": settings.alpha,
            "shards_per_client": settings.shards_per_client,
            "exponent": settings.exponent,
        }
        return partition(
            self.dataset.train.targets,
            self._config.clients.total,
            settings.scheme,
            self._config.seed,
            **{key: value for key, value in options.items() if value is not None},  # type: ignore[arg-type]
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise DeviceError(
            f"There is no device '{name}' on this machine: set device=auto or device=cpu."
        ) from error
