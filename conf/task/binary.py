"""Two classes, one output."""

from __future__ import annotations

from typing import ClassVar

from fedsketch.conf.settings import Metric, TaskSettings
from fedsketch.conf.targets import Targets
from fedsketch.conf.types import Positive, frozen


@frozen
class BinaryConfig(TaskSettings):
    positive_weight: Positive

    targets: ClassVar[Targets] = Targets.CLASSES
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", percent=True),
        Metric("auc"),
        Metric("f1"),
    )


SETTINGS = BinaryConfig
