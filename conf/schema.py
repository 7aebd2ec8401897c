"""What a configuration may hold: types, ranges, and what must fit together.

The YAML files beside this one hold the defaults, so no default stands here twice. Hydra composes them, `conf.compose`
turns the result into these frozen objects, and only they travel through the program.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from fedsketch.conf.r_secret import refuse_r_secret

frozen = dataclass(
    frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
)

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Bits = Annotated[int, Field(ge=16, le=64)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Unit(StrEnum):
    """What the guarantee protects."""

    client = "client"
    example = "example"


class Against(StrEnum):
    """Whom the privacy budget binds."""

    model = "model"
    server = "server"


class Accounting(StrEnum):
    """Which theorem turns the budget into noise; what was spent is always the accountant's."""

    exact = "exact"
    paper = "paper"


class Randomness(StrEnum):
    """Where noise and cohorts come from."""

    secret = "secret"
    seeded = "seeded"


class Noise(StrEnum):
    """The law of the devices' noise."""

    gaussian = "gaussian"
    skellam = "skellam"


class Sampling(StrEnum):
    """How a round's cohort is drawn."""

    fixed = "fixed"
    poisson = "poisson"
    passes = "passes"


class Optimizer(StrEnum):
    """The server's optimiser."""

    sgd = "sgd"
    adam = "adam"
    amsgrad = "amsgrad"


@frozen
class ClientsConfig:
    total: Count
    per_round: Count
    sampling: Sampling
    tolerated_dropouts: Share
    retries: Annotated[int, Field(ge=0)]
    timeout: Positive

    def __post_init__(self) -> None:
        if self.per_round > self.total:
            raise ValueError(
                f"clients.per_round={self.per_round} is more than clients.total={self.total}: lower one or raise the other"
            )


@frozen
class PartitionConfig:
    scheme: Literal["iid", "dirichlet", "shards", "by_size", "one_example"]
    alpha: Positive | None = None
    shards_per_client: Count | None = None
    exponent: Positive | None = None


@frozen
class DataConfig:
    name: Literal["digits", "fashion_mnist", "mnist", "cifar10"]
    root: str | None
    partition: PartitionConfig


@frozen
class SyntheticConfig:
    name: Literal["synthetic"]
    root: None
    partition: PartitionConfig
    examples: Count
    test_examples: Count
    shape: tuple[Count, Count, Count]
    classes: Annotated[int, Field(ge=2)]
    separation: Positive


@frozen
class FolderConfig:
    """Data that devices hold: what all must agree on, and the server's test set below `root`."""

    name: Literal["folder"]
    root: str | None
    shape: tuple[Count, Count, Count]
    classes: Annotated[int, Field(ge=2)] | Annotated[tuple[str | int, ...], Field(min_length=2)]
    largest_shard: Count

    def __post_init__(self) -> None:
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError("data.classes names a class twice: take one away")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the folders, in the order of the targets."""
        names = range(self.classes) if isinstance(self.classes, int) else self.classes
        return tuple(map(str, names))


@frozen
class ModelConfig:
    name: Literal["logistic", "mlp", "cnn", "lenet5", "resnet"]
    width: Count | None = None
    depth: Count | None = None


@frozen
class PrivacyConfig:
    unit: Unit
    epsilon: Positive | None
    delta: Annotated[float, Field(gt=0, lt=1)]
    clip: Positive | None
    noise_multiplier: NotNegative | None
    against: Against
    accounting: Accounting
    randomness: Randomness

    def __post_init__(self) -> None:
        if self.epsilon is None and self.noise_multiplier is None:
            raise ValueError(
                "set privacy.epsilon, privacy.noise_multiplier, or both (then the run stops at epsilon)"
            )
        if self.epsilon is not None and self.noise_multiplier == 0:
            raise ValueError(
                "without noise there is no epsilon to keep: set privacy.epsilon=null, or privacy.noise_multiplier=null"
            )
        if self.clip is None and self.private:
            raise ValueError(
                "privacy.clip=null bounds nothing that noise could hide: set privacy.clip"
            )

    @property
    def private(self) -> bool:
        """Whether any guarantee is asked for."""
        return self.noise_multiplier != 0


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
class StrategyConfig:
    name: Literal["fedavg", "dp_fedavg"]
    local: LocalConfig
    server: OptimizerConfig


@frozen
class DebiasedConfig:
    """The server's step on a desketched mean whose noise is known."""

    optimizer: Optimizer
    lr: Positive
    momentum: Share
    second_momentum: Share
    debias: bool
    floor: Positive


@frozen
class DomeConfig:
    """DOME: a sketch that learns where the gradients are."""

    name: Literal["dome"]
    local: LocalConfig
    server: DebiasedConfig
    sketch: Literal["layerwise", "flat"]
    sketch_dim: Positive
    warm_up: Annotated[int, Field(ge=0)]
    learned_share: Annotated[float, Field(ge=0, le=1)]
    decay: Annotated[float, Field(gt=0, le=1)]
    feed: Literal["gradient", "momentum"]
    keep: Literal["noise_floor", "energy", "all"]
    energy: Annotated[float, Field(gt=0, le=1)]
    mean_removal: Share
    error_feedback: Share
    broadcast: Literal["full", "replay"]
    variant: Literal["mended", "paper"]

    def __post_init__(self) -> None:
        if self.variant == "paper" and (self.sketch != "flat" or self.warm_up):
            raise ValueError(
                "strategy.variant=paper sketches everything at once, as printed: set strategy.sketch=flat and strategy.warm_up=0"
            )
        if self.mean_removal and self.feed == "momentum":
            raise ValueError(
                "strategy.mean_removal leaves noise of many rounds in the momentum, unknown to the noise floor: set strategy.feed=gradient"
            )


@frozen
class FedSgmConfig:
    """Fed-SGM: a random sketch from a seed."""

    name: Literal["fed_sgm"]
    local: LocalConfig
    server: OptimizerConfig
    sketch: Literal["gaussian", "hadamard", "count_sketch", "identity"]
    sketch_dim: Positive
    seed_per: Literal["round", "run"]
    clip: Literal["before", "after", "both"]
    accounting: Literal["r_public", "r_secret"]

    def __post_init__(self) -> None:
        if self.sketch == "count_sketch" and self.clip == "before":
            raise ValueError(
                "a count sketch may add a whole update up in one bucket, so that strategy.clip=before bounds nothing: "
                "set strategy.clip=after or both"
            )


@frozen
class NoSecAggConfig:
    """The server sees every upload."""

    name: Literal["none"]
    noise: Noise
    bits: Bits
    colluders: ClassVar[float] = 0.0


@frozen
class SecAggConfig:
    """The server sees sums."""

    name: Literal["pairwise", "semi_honest"]
    noise: Literal[Noise.skellam]
    bits: Bits
    colluders: Share
    merged: bool
    stage_timeout: Positive
    patience: NotNegative


@frozen
class LocalRuntimeConfig:
    name: Literal["local"]


@frozen
class SimulationRuntimeConfig:
    name: Literal["simulation"]
    address: str | None
    cpus_per_client: Positive
    gpus_per_client: NotNegative


@frozen
class ProcessesRuntimeConfig:
    name: Literal["processes"]
    most_nodes: Count


@frozen
class DeploymentRuntimeConfig:
    name: Literal["deployment"]
    superlink: str | None
    root_certificates: str | None

    def __post_init__(self) -> None:
        if not self.superlink:
            raise ValueError(
                "runtime=deployment needs to know where: set runtime.superlink to host:port or to a connection of your Flower configuration"
            )


@frozen
class Config:
    """Everything that makes a run. Equal configs make equal runs, up to secret noise and cohorts."""

    rounds: Count
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    device: str
    evaluate_every: Count
    checkpoint_every: Count
    clients: ClientsConfig
    data: Annotated[DataConfig | SyntheticConfig | FolderConfig, Field(discriminator="name")]
    model: ModelConfig
    privacy: PrivacyConfig
    secagg: Annotated[NoSecAggConfig | SecAggConfig, Field(discriminator="name")]
    runtime: Annotated[
        LocalRuntimeConfig
        | SimulationRuntimeConfig
        | ProcessesRuntimeConfig
        | DeploymentRuntimeConfig,
        Field(discriminator="name"),
    ]
    strategy: Annotated[StrategyConfig | DomeConfig | FedSgmConfig, Field(discriminator="name")]

    def __post_init__(self) -> None:
        if self.strategy.name == "fedavg" and self.privacy.private:
            raise ValueError(
                "strategy=fedavg gives no privacy: take its privacy settings away, or choose strategy=dp_fedavg"
            )
        if (
            isinstance(self.runtime, ProcessesRuntimeConfig)
            and self.clients.total > self.runtime.most_nodes
        ):
            raise ValueError(
                f"runtime=processes starts a node per client and clients.total={self.clients.total} is more than "
                f"runtime.most_nodes={self.runtime.most_nodes}: lower clients.total and clients.per_round"
            )
        if self.secagg.noise is Noise.skellam and self.privacy.clip is None:
            raise ValueError(
                f"secagg={self.secagg.name} sums in a ring, which holds only bounded numbers: set privacy.clip, or secagg=none"
            )
        if (
            isinstance(self.strategy, DomeConfig)
            and self.strategy.warm_up
            and self.secagg.bits <= 20
        ):
            raise ValueError(
                "strategy.warm_up sends vectors of two lengths, which a rotated ring cannot: set secagg.bits above 20"
            )
        if (
            isinstance(self.strategy, DomeConfig)
            and self.strategy.error_feedback
            and self.privacy.unit is Unit.example
        ):
            raise ValueError(
                "strategy.error_feedback remembers one residual per client: set it to 0, or privacy.unit=client"
            )
        local = self.strategy.local
        if self.privacy.unit is Unit.example and (local.steps > 1 or local.epochs or local.batch):
            raise ValueError(
                "privacy.unit=example clips each example's gradient: set strategy.local.steps=1, strategy.local.epochs=null "
                "and strategy.local.batch=0"
            )
        if isinstance(self.strategy, FedSgmConfig) and self.strategy.accounting == "r_secret":
            refuse_r_secret(self)
