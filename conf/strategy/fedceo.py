"""FedCEO: low-rank smoothing of the stack of noisy models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedsketch.conf.settings import Optimizer, StrategySettings
from fedsketch.conf.types import Count, Positive, frozen
from fedsketch.privacy.accounting.releases import Unit

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


@frozen
class FedCeoConfig(StrategySettings):
    every: Count | None
    start: Literal["mean", "slots"]
    groups: Annotated[int, Field(ge=2)] | None
    threshold: Literal["noise", "paper"]
    edge: Annotated[float, Field(ge=0)]
    weight: Positive
    growth: Annotated[float, Field(ge=1)]
    tensors: Literal["matrices", "all"]

    def __post_init__(self) -> None:
        if self.server.optimizer is not Optimizer.SGD or self.server.momentum:
            raise ValueError(
                "strategy=fedceo averages models: set strategy.server.optimizer=sgd and strategy.server.momentum=0"
            )
        if self.groups is not None and self.start == "mean":
            raise ValueError(
                "strategy.start=mean needs only the whole sum: leave strategy.groups out, or set strategy.start=slots"
            )

    def check(self, config: Config) -> None:
        if config.privacy.unit is not Unit.CLIENT:
            raise ValueError("strategy=fedceo noises whole updates: set privacy.unit=client")
        if self.every is None or self.start == "mean":
            return
        if config.clients.sampling == "poisson":
            raise ValueError(
                "a stack of models shows how large a cohort was, which Poisson sampling must hide: set "
                "clients.sampling=fixed, or strategy.start=mean"
            )
        masked = config.secagg.name != "none"
        if masked and self.groups is None:
            raise ValueError(
                f"strategy.start=slots stacks the models of single clients, but secagg={config.secagg.name} promises "
                "that the server sees only sums: set strategy.groups to stack sums of groups, strategy.start=mean to "
                "smooth the whole sum, or secagg=none"
            )
        if not masked and self.groups is not None:
            raise ValueError(
                "without masks the server sees each model separately: leave strategy.groups out, or set secagg=auto"
            )
        if self.groups is not None and config.clients.per_round % self.groups:
            raise ValueError(
                "groups must have equal sizes: set clients.per_round to a multiple of strategy.groups"
            )


SETTINGS = FedCeoConfig
