"""FedPCDP: local training with noised steps, in a subspace that is computed from public data."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from fedsketch.conf.settings import FollowedSettings
from fedsketch.conf.types import Count, Positive, frozen
from fedsketch.privacy.accounting.releases import Unit

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


@frozen
class FedPcdpConfig(FollowedSettings):
    noise_in_training: ClassVar[bool] = True

    projection: Literal["before", "after", "none"]
    basis: Literal["tensor", "whole"]
    rank: Count
    public_examples: Count
    refresh: Count
    blocks: Literal["independent", "random", "fixed"]
    clipping: Literal["flat", "automatic", "normalised", "adaptive"]
    stabiliser: Positive

    def __post_init__(self) -> None:
        if self.local.epochs is not None or self.local.batch == 0:
            raise ValueError(
                "strategy=fedpcdp draws a batch for every local step: set strategy.local.epochs=null and "
                "strategy.local.batch"
            )
        if self.rank > self.public_examples:
            raise ValueError(
                "gradients of strategy.public_examples examples span at most as many directions: lower strategy.rank"
            )

    def check(self, config: Config) -> None:
        if config.privacy.unit is not Unit.EXAMPLE or config.privacy.clip is None:
            raise ValueError(
                "strategy=fedpcdp clips and noises examples: set privacy.unit=example and privacy.clip"
            )
        if config.privacy.clip == "adaptive":
            raise ValueError(
                "strategy=fedpcdp clips inside of local training, where no count can be sent: set privacy.clip to a "
                "number (its own strategy.clipping adapts to examples)"
            )


SETTINGS = FedPcdpConfig
