"""DOME: a sketch that learns the subspace of the gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedsketch.conf.settings import OptimizerConfig, StrategySettings
from fedsketch.conf.types import Count, Fraction, NotNegative, Positive, frozen
from fedsketch.privacy.accounting.releases import Unit

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


@frozen
class DebiasedConfig(OptimizerConfig):
    """The server's step on a mean that was mapped back from the sketch, and whose noise is known."""

    second_momentum: Fraction
    debias: bool
    floor: Positive


@frozen
class DomeConfig(StrategySettings):
    server: DebiasedConfig
    sketch: Literal["layerwise", "flat", "blocks"]
    sketch_dim: Positive
    directions: Literal["learned", "public"]
    scaling: NotNegative
    refresh: Count
    warm_up: Annotated[int, Field(ge=0)]
    learned_share: Annotated[float, Field(ge=0, le=1)]
    decay: Annotated[float, Field(gt=0, le=1)]
    feed: Literal["gradient", "momentum"]
    keep: Literal["noise_floor", "energy", "all"]
    energy: Annotated[float, Field(gt=0, le=1)]
    mean_removal: Fraction
    error_feedback: Fraction
    broadcast: Literal["full", "replay"]
    variant: Literal["corrected", "paper"]

    @property
    def devices_remember(self) -> bool:
        return self.error_feedback > 0.0

    def __post_init__(self) -> None:
        if self.variant == "paper" and (self.sketch != "flat" or self.warm_up):
            raise ValueError(
                "strategy.variant=paper sketches the whole gradient: set strategy.sketch=flat and strategy.warm_up=0"
            )
        if self.directions == "public" and (self.sketch != "layerwise" or self.warm_up):
            raise ValueError(
                "strategy.directions=public are those of each layer's inputs, known from the start: set "
                "strategy.sketch=layerwise and strategy.warm_up=0"
            )
        if self.directions == "public" and (self.mean_removal or self.error_feedback):
            raise ValueError(
                "strategy.directions=public never sees what lies outside of its directions, and scales what lies "
                "inside: set strategy.mean_removal=0 and strategy.error_feedback=0"
            )
        if self.mean_removal and self.feed == "momentum":
            raise ValueError(
                "strategy.mean_removal leaves noise of many rounds in the momentum, which the noise floor cannot "
                "know: set strategy.feed=gradient"
            )

    def check(self, config: Config) -> None:
        if self.warm_up and config.secagg.bits in range(21):
            raise ValueError(
                "strategy.warm_up sends vectors of two lengths, which a rotated ring cannot: set secagg.bits above 20"
            )
        if self.error_feedback and config.privacy.unit is Unit.EXAMPLE:
            raise ValueError(
                "strategy.error_feedback remembers one residual per client: set it to 0, or privacy.unit=client"
            )


SETTINGS = DomeConfig
