"""What a configuration may hold: types, ranges, and what must fit together.

The YAML files beside this one hold the defaults, so no default stands here twice. Hydra composes them, `conf.compose`
turns the result into these frozen objects, and only they travel through the program.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

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
class Config:
    """Everything that makes a run. Equal configs make equal runs, up to secret noise and cohorts."""

    rounds: Count
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    device: str
    evaluate_every: Count
    checkpoint_every: Count
    clients: ClientsConfig
    data: Annotated[DataConfig | SyntheticConfig, Field(discriminator="name")]
    model: ModelConfig
    privacy: PrivacyConfig
    secagg: Annotated[NoSecAggConfig | SecAggConfig, Field(discriminator="name")]
    runtime: Annotated[LocalRuntimeConfig | SimulationRuntimeConfig, Field(discriminator="name")]
    strategy: Annotated[StrategyConfig | DomeConfig, Field(discriminator="name")]

    def __post_init__(self) -> None:
        if self.strategy.name == "fedavg" and self.privacy.private:
            raise ValueError(
                "strategy=fedavg gives no privacy: take its privacy settings away, or choose strategy=dp_fedavg"
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
        if self.privacy.unit is Unit.example and (
            self.strategy.local.steps > 1 or self.strategy.local.batch > 0
        ):
            raise ValueError(
                "privacy.unit=example clips each example's gradient: set strategy.local.steps=1 and strategy.local.batch=0"
            )
