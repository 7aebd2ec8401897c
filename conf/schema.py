"""What a configuration may contain: types, ranges, and what must fit together.

The YAML files beside this one hold the defaults, so defaults are not repeated here. Hydra composes the files,
`conf.composition` turns the result into these frozen objects, and the rest of the program sees nothing else.

The groups on which the guarantee depends (privacy, secagg, clients, evaluation, runtime) are closed: only this file
defines them. Strategies, tasks, data sets, models and trackers are open: installed packages can add some, and their
settings classes stand beside their YAML files (`conf.settings`, `conf.plugins`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, SerializeAsAny, TypeAdapter
from pydantic_core import PydanticCustomError

from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig, ServerEvaluationConfig
from fedsketch.conf.plugins import FEATURES, built_in, refuse_unknown, settings_class
from fedsketch.conf.settings import (
    DataSettings,
    ModelSettings,
    Settings,
    StrategySettings,
    TaskSettings,
    TrackingSettings,
)
from fedsketch.conf.types import (
    Count,
    Fraction,
    FractionOrCount,
    NotNegative,
    Positive,
    RingBits,
    frozen,
)
from fedsketch.privacy.accounting.releases import Unit


class Against(StrEnum):
    """The adversary that the privacy budget is for."""

    MODEL = "model"
    CLIENT = "client"
    SERVER = "server"


class Accounting(StrEnum):
    """Which theorem turns the budget into noise. What was spent is always computed by the accountant."""

    EXACT = "exact"
    PAPER = "paper"


class Randomness(StrEnum):
    """Where the randomness of noise and cohorts comes from."""

    SECRET = "secret"
    SEEDED = "seeded"


class Noise(StrEnum):
    """The distribution of the noise that devices add."""

    GAUSSIAN = "gaussian"
    SKELLAM = "skellam"


class CohortSampling(StrEnum):
    """How the cohort of a round is drawn."""

    FIXED = "fixed"
    POISSON = "poisson"
    PASSES = "passes"
    CYCLE = "cycle"

    @property
    def in_passes(self) -> bool:
        """Whether every client takes part in exactly one round of each pass."""
        return self in (CohortSampling.PASSES, CohortSampling.CYCLE)


@frozen
class ClientsConfig:
    total: Count
    per_round: Count
    sampling: CohortSampling
    tolerated_dropouts: Fraction
    retries: Annotated[int, Field(ge=0)]
    timeout: Positive
    # A default for runs that are older than this key.
    tolerated_losses: FractionOrCount = 0.05

    @property
    def rounds_per_pass(self) -> int:
        """The rounds of a pass, in which every client takes part once."""
        return -(-self.total // self.per_round)

    @property
    def are_drawn(self) -> bool:
        """Whether a random draw decides who is in a round, so that it may hide them."""
        return not self.sampling.in_passes and self.per_round < self.total

    def __post_init__(self) -> None:
        if self.per_round > self.total:
            raise ValueError(
                f"clients.per_round={self.per_round} is more than clients.total={self.total}: lower it or raise the "
                "total"
            )


# Outside of these ranges, sums of squares leave the range of floating-point numbers, or only noise is left.
_CLIPS = (1e-9, 1e9)
_MOST_NOISE = 1e6
ADAPTIVE: Literal["adaptive"] = "adaptive"


@frozen
class AdaptiveClipConfig:
    """The start of an adaptive clip, the quantile of norms that it seeks, its rate, and the weight of the count."""

    start: Positive
    quantile: Annotated[float, Field(gt=0, lt=1)]
    rate: Positive
    weight: Annotated[float, Field(gt=0, le=2)]
    most: ClassVar[float] = 1000.0  # the clip stays within this factor of its start


@frozen
class PrivacyConfig:
    unit: Unit
    epsilon: Positive | None
    delta: Annotated[float, Field(gt=0, lt=1)]
    clip: Positive | Literal["adaptive"] | None
    adaptive: AdaptiveClipConfig
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
                "without noise there is no epsilon: set privacy.epsilon=null, or privacy.noise_multiplier=null"
            )
        first, (least, most) = self.first_clip, _CLIPS
        if first is not None and not least <= first <= most:
            raise ValueError(
                f"privacy.clip={first:g} is out of range: set it between {least:g} and {most:g}"
            )
        if self.noise_multiplier is not None and self.noise_multiplier > _MOST_NOISE:
            raise ValueError(
                f"privacy.noise_multiplier={self.noise_multiplier:g} leaves only noise: set at most {_MOST_NOISE:g}"
            )
        if self.clip is None and self.private:
            raise ValueError(
                "with privacy.clip=null no noise can hide an update, because it is not bounded: set privacy.clip"
            )

    @property
    def fixed_clip(self) -> float | None:
        """The clip of all rounds; None if there is no clip, or if it is adaptive."""
        return None if self.clip == ADAPTIVE else self.clip

    @property
    def first_clip(self) -> float | None:
        """The clip of the first round."""
        return self.adaptive.start if self.clip == ADAPTIVE else self.clip

    @property
    def largest_clip(self) -> float | None:
        """The largest clip that a round of the run may have."""
        return self.adaptive.start * self.adaptive.most if self.clip == ADAPTIVE else self.clip

    @property
    def private(self) -> bool:
        """Whether any guarantee is asked for."""
        return self.noise_multiplier != 0


@frozen
class ValidationConfig:
    """The server's own examples, which select the best model and stop a run that no longer improves."""

    examples: Annotated[int, Field(ge=0)]
    metric: str | None
    patience: Count | None

    def __post_init__(self) -> None:
        if not self.examples and (self.metric is not None or self.patience is not None):
            raise ValueError(
                "validation.metric and validation.patience need held-out examples: set validation.examples"
            )


@frozen
class NoSecAggConfig:
    """The server sees every upload."""

    name: Literal["none"]
    noise: Noise
    bits: RingBits
    colluders: ClassVar[float] = 0.0


_MOST_BITS_IN_TWO_TRIPS = 32


@frozen
class SecAggConfig:
    """The server sees only sums. `auto` chooses between pairwise and two_trips for each kind of round."""

    name: Literal["auto", "pairwise", "semi_honest", "two_trips"]
    noise: Literal[Noise.SKELLAM]
    bits: RingBits
    colluders: FractionOrCount
    merged: bool
    stage_timeout: Positive
    patience: NotNegative

    def __post_init__(self) -> None:
        if self.name == "two_trips" and self.merged:
            raise ValueError(
                "secagg.merged=true is for pairwise masks, and sums in two trips have nothing to merge: leave it out"
            )
        most = _MOST_BITS_IN_TWO_TRIPS
        if self.name == "two_trips" and isinstance(self.bits, int) and self.bits > most:
            raise ValueError(
                f"secagg.bits={self.bits} is more than the {most} of sums in two trips: lower it, or set "
                "secagg=pairwise"
            )


@frozen
class LocalRuntimeConfig:
    name: Literal["local"]


@frozen
class CohortRuntimeConfig:
    name: Literal["cohort"]
    noise: Literal["per_sum", "per_device"]
    memory: Count
    workers: Count | None


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
                "runtime=deployment needs a SuperLink: set runtime.superlink to host:port or to a connection of your "
                "Flower configuration"
            )


def _chosen_in(group: str) -> PlainValidator:
    """Return a validator that finds the settings class of a choice by its name, and checks the choice with it."""

    def validate(value: Any) -> Settings:
        if isinstance(value, Settings):  # checked when it was made
            return value
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str):
            raise PydanticCustomError("no_name", "it should be a mapping with a name")
        return TypeAdapter(settings_class(group, name)).validate_python(value)

    return PlainValidator(validate)


@frozen
class Config:
    """Everything that makes a run. Equal configs make equal runs, up to secret noise and cohorts."""

    rounds: Annotated[int, Field(ge=1, le=10**7)]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    device: str
    evaluate_every: Count
    checkpoint_every: Count
    clients: ClientsConfig
    data: Annotated[SerializeAsAny[DataSettings], _chosen_in("data")]
    task: Annotated[SerializeAsAny[TaskSettings], _chosen_in("task")]
    model: Annotated[SerializeAsAny[ModelSettings], _chosen_in("model")]
    privacy: PrivacyConfig
    secagg: Annotated[NoSecAggConfig | SecAggConfig, Field(discriminator="name")]
    runtime: Annotated[
        LocalRuntimeConfig
        | CohortRuntimeConfig
        | SimulationRuntimeConfig
        | ProcessesRuntimeConfig
        | DeploymentRuntimeConfig,
        Field(discriminator="name"),
    ]
    strategy: Annotated[SerializeAsAny[StrategySettings], _chosen_in("strategy")]
    # Devices receive no tracker.
    tracking: Annotated[SerializeAsAny[TrackingSettings], _chosen_in("tracking")] = (
        TrackingSettings(name="none")
    )
    # A default for runs that are older than this choice.
    evaluation: Annotated[
        ServerEvaluationConfig | FederatedEvaluationConfig, Field(discriminator="name")
    ] = ServerEvaluationConfig(name="server")

    # A default for runs that are older than this key.
    validation: ValidationConfig = ValidationConfig(examples=0, metric=None, patience=None)

    @property
    def plugins(self) -> dict[str, str]:
        """What devices need from installed packages: the names of the choices by their groups."""
        groups = ("strategy", "task", "model", "data")
        chosen = {group: getattr(self, group).name for group in groups}
        if self.model.features is not None:
            chosen[FEATURES] = self.model.features
        return {group: name for group, name in chosen.items() if name not in built_in(group)}

    @property
    def draw_may_be_secret(self) -> bool:
        """Whether an epsilon may rest on it that nobody is told which clients are drawn, and how many."""
        return self.privacy.private and self.clients.are_drawn

    @property
    def metrics_are_secret(self) -> bool:
        """Whether the numbers of rounds are for the server alone."""
        without_noise = self.privacy.private and self.strategy.measures_without_noise
        return self.draw_may_be_secret or without_noise

    def __post_init__(self) -> None:
        metrics = [metric.name for metric in self.task.all_metrics]
        if self.validation.metric not in (None, *metrics):
            raise ValueError(
                f"validation.metric={self.validation.metric} is no metric of task={self.task.name}: "
                f"set one of {', '.join(metrics)}"
            )
        if (
            isinstance(self.runtime, ProcessesRuntimeConfig)
            and self.clients.total > self.runtime.most_nodes
        ):
            raise ValueError(
                f"runtime=processes starts a node per client and clients.total={self.clients.total} is more than "
                f"runtime.most_nodes={self.runtime.most_nodes}: lower clients.total and clients.per_round"
            )
        if self.secagg.noise is Noise.SKELLAM and self.privacy.clip is None:
            raise ValueError(
                f"secagg={self.secagg.name} sums in a ring, which holds only bounded numbers: set privacy.clip, or "
                "secagg=none"
            )
        if self.model.features is not None:
            refuse_unknown(FEATURES, self.model.features)
        local = self.strategy.local
        once = local.steps == 1 and not local.epochs and not local.batch
        by_example = once or self.strategy.noise_in_training
        if self.privacy.unit is Unit.EXAMPLE and not by_example:
            raise ValueError(
                "privacy.unit=example clips each example's gradient: set strategy.local.steps=1, "
                "strategy.local.epochs=null and strategy.local.batch=0"
            )
        open_groups = (self.strategy, self.task, self.data, self.model, self.tracking)
        for chosen in (*open_groups, self.evaluation):
            chosen.check(self)
