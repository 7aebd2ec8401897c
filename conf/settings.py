"""What the settings of strategies, tasks, data sets, models and trackers share, whether they are ours or of an installed package.

A settings class stands beside its YAML file, which holds the defaults: `<group>/<name>.yaml` and `<group>/<name>.py`. The module ends
with `SETTINGS = TheClass`. `conf.plugins` finds it by the group and the name.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from fedsketch.conf.targets import Targets
from fedsketch.conf.types import Count, Positive, Share, frozen

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


@frozen
class Settings:
    """One choice of an open group. Fields must be hashable: take tuples instead of lists."""

    name: str

    def check(self, config: "Config") -> None:
        """Raise ValueError, with a sentence that names the keys to change, if the rest of the configuration does not fit."""


class Optimizer(StrEnum):
    """The server's optimiser."""

    sgd = "sgd"
    adam = "adam"
    amsgrad = "amsgrad"


@frozen
class LocalConfig:
    """The work of a device in one round."""

    steps: Count
    epochs: Count | None
    batch: Annotated[int, Field(ge=0)]
    lr: Positive
    momentum: Share


@frozen
class OptimizerConfig:
    """The server's step on the mean update."""

    optimizer: Optimizer
    lr: Positive
    momentum: Share


@frozen
class StrategySettings(Settings):
    """What every strategy has."""

    noise_in_training: ClassVar[bool] = False  # whether its local steps are noised, each on its own

    local: LocalConfig
    server: OptimizerConfig


# Of parameter names. All are tried on all names, so a message must not bring many long ones.
Pattern = Annotated[str, Field(max_length=200)]


@frozen
class ModelSettings(Settings):
    """A model adds its own options. `features` is a frozen map in front of it (`tasks.features`), and `weights` the server's file to
    start from, which devices are not told (`tasks.weights`). `trainable` names the parameters that are trained, by patterns, and
    `lora_rank` adds adapters to linear layers that are not (`tasks.trained`)."""

    # Packages that were written before there were these keys do not have them in their YAML files.
    features: str | None = Field(default=None, kw_only=True)
    weights: str | None = Field(default=None, kw_only=True)
    trainable: Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=100)] | None = Field(
        default=None, kw_only=True
    )
    lora_rank: Count | None = Field(default=None, kw_only=True)
    lora_alpha: Positive | None = Field(default=None, kw_only=True)


@frozen
class PartitionConfig:
    """How the examples of a data set are spread over the clients."""

    scheme: Literal[
        "iid",
        "dirichlet",
        "shards",
        "pathological",
        "by_size",
        "linear",
        "square",
        "exponential",
        "continuous",
        "natural",
        "one_example",
    ]
    alpha: Positive | None = None
    shards_per_client: Count | None = None
    classes_per_client: Count | None = None
    exponent: Positive | None = None
    strictness: Annotated[float, Field(ge=0, le=1)] | None = None


@frozen
class DataSettings(Settings):
    """A data set: `root` is the place of its files, if it has any, and `public_root` that of public examples on the server."""

    root: str | None
    # Packages that were written before there was public data have no such key in their YAML files.
    public_root: str | None = Field(default=None, kw_only=True)


@frozen
class PartitionedSettings(DataSettings):
    """A data set that every machine of a run can load whole; each client takes its part of it. `public` examples are no client's."""

    partition: PartitionConfig
    public: int = Field(default=0, ge=0, kw_only=True)

    def check(self, config: "Config") -> None:
        if self.public and self.public_root is not None:
            raise ValueError(
                "data.public holds examples out of the training set and data.public_root names others: set one of them"
            )


class Metric(NamedTuple):
    """A number that says how good a model is."""

    name: str
    higher_is_better: bool = True
    percent: bool = False  # whether it is a share, shown in percent


LOSS = Metric("loss", higher_is_better=False)


@frozen
class TaskSettings(Settings):
    """What is learned: a loss and metrics (`tasks.task`). They are named here, because displays and reports need no torch."""

    targets: ClassVar[Targets]  # what it is made for
    metrics: ClassVar[tuple[Metric, ...]]  # besides the loss; runs are judged by the first

    @property
    def headline(self) -> Metric:
        """The metric by which runs are judged."""
        return self.metrics[0] if self.metrics else LOSS

    @property
    def all_metrics(self) -> tuple[Metric, ...]:
        """All that a test measures."""
        return (*self.metrics, LOSS)


@frozen
class TrackingSettings(Settings):
    """A tracker adds its own options. They stay on the server: devices are never sent them."""
