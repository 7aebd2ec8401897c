"""What the settings of strategies, tasks, data sets, models and trackers have in common, built in or from a package.

A settings class stands beside its YAML file, which holds the defaults: `<group>/<name>.yaml` and `<group>/<name>.py`.
The module ends with `SETTINGS = TheClass`, and `conf.plugins` finds it by the group and the name. A choice without
settings of its own needs no module.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from fedsketch.conf.targets import Targets
from fedsketch.conf.types import Count, Fraction, Positive, frozen

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


@frozen
class Settings:
    """One choice of an open group. Fields must be hashable: use tuples instead of lists."""

    name: str

    def check(self, config: Config) -> None:
        """Raise ValueError if the rest of the configuration does not fit. The message names the keys to change."""


class Optimizer(StrEnum):
    """The server's optimiser."""

    SGD = "sgd"
    ADAM = "adam"
    AMSGRAD = "amsgrad"


@frozen
class LocalConfig:
    """The local training of a device in one round."""

    steps: Count
    epochs: Count | None
    batch: Annotated[int, Field(ge=0)]
    lr: Positive
    momentum: Fraction


@frozen
class OptimizerConfig:
    """The server's step on the mean update."""

    optimizer: Optimizer
    lr: Positive
    momentum: Fraction


@frozen
class StrategySettings(Settings):
    """The settings that every strategy has."""

    noise_in_training: ClassVar[bool] = False  # whether noise is added to each local step

    local: LocalConfig
    server: OptimizerConfig

    @property
    def devices_remember(self) -> bool:
        """Whether devices keep something from round to round. If not, they get no memory. The accountant asks too:
        memory tells when a client took part, which weakens what a secret draw of fixed size hides."""
        return False

    @property
    def measures_without_noise(self) -> bool:
        """Whether metrics of a round are made of uploads before any noise, by a server that is trusted."""
        return False


@frozen
class FollowedSettings(StrategySettings):
    """The settings of strategies whose devices can repeat the server's step instead of receiving the model."""

    # A default for runs that are older than this key.
    broadcast: Literal["auto", "full", "replay"] = Field(default="full", kw_only=True)


# Bounds on patterns of parameter names: each is tried on all names, so a message must not bring many long ones.
Pattern = Annotated[str, Field(max_length=200)]


@frozen
class ModelSettings(Settings):
    """The settings that every model has, beside its own. `features` is a frozen map in front of the model
    (`tasks.models.features`). `weights` is a file on the server to start from, whose path devices do not receive
    (`tasks.models.weights`). `trainable` selects the parameters that are trained, by patterns, and `lora_rank` adds
    adapters to the other linear layers (`tasks.models.trainable_part`)."""

    # Defaults for packages whose YAML files are older than these keys.
    features: str | None = Field(default=None, kw_only=True)
    weights: str | None = Field(default=None, kw_only=True)
    trainable: Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=100)] | None = Field(
        default=None, kw_only=True
    )
    lora_rank: Count | None = Field(default=None, kw_only=True)
    lora_alpha: Positive | None = Field(default=None, kw_only=True)


@frozen
class PartitionConfig:
    """How the examples of a data set are divided among the clients."""

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
    """A data set: `root` is where its files are, if it has any, and `public_root` where the server's public examples
    are."""

    root: str | None
    # A default for packages whose YAML files are older than this key.
    public_root: str | None = Field(default=None, kw_only=True)


@frozen
class PartitionedSettings(DataSettings):
    """A data set that every machine of a run can load whole. Each client takes its part; `public` examples belong to
    none."""

    partition: PartitionConfig
    public: int = Field(default=0, ge=0, kw_only=True)

    def check(self, config: Config) -> None:
        if self.public and self.public_root is not None:
            raise ValueError(
                "data.public and data.public_root both name public examples: set one of them"
            )


class Metric(NamedTuple):
    """A number that says how good a model is."""

    name: str
    higher_is_better: bool = True
    percent: bool = False  # whether it is a share that is shown in percent


LOSS = Metric("loss", higher_is_better=False)


@frozen
class TaskSettings(Settings):
    """What is learned: a loss and metrics (`tasks.task`). Metrics are named here because displays and reports import no
    torch."""

    targets: ClassVar[Targets]  # the form of targets that the task needs
    metrics: ClassVar[tuple[Metric, ...]]  # without the loss; runs are compared by the first

    @property
    def headline(self) -> Metric:
        """The metric by which runs are compared."""
        return self.metrics[0] if self.metrics else LOSS

    @property
    def all_metrics(self) -> tuple[Metric, ...]:
        """All metrics that a test measures, with the loss."""
        return (*self.metrics, LOSS)


@frozen
class TrackingSettings(Settings):
    """The settings that every tracker has, beside its own. They stay on the server: devices never receive them."""
