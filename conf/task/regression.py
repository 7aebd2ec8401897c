"""A number for each example."""

from __future__ import annotations

from typing import ClassVar, Literal

from fedsketch.conf.settings import Metric, TaskSettings
from fedsketch.conf.targets import Targets
from fedsketch.conf.types import Positive, frozen


@frozen
class RegressionConfig(TaskSettings):
    loss: Literal["squared", "huber"]
    delta: Positive
    largest_error: Positive
    unit: Positive

    targets: ClassVar[Targets] = Targets.NUMBERS
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("rmse", higher_is_better=False),
        Metric("mae", higher_is_better=False),
        Metric("r2"),
        Metric("clipped_error", higher_is_better=False),
    )


SETTINGS = RegressionConfig
