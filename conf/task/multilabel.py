"""Any number of labels for each example."""

from __future__ import annotations

from typing import ClassVar

from fedsketch.conf.settings import Metric, TaskSettings
from fedsketch.conf.targets import Targets
from fedsketch.conf.types import frozen


@frozen
class MultilabelConfig(TaskSettings):
    targets: ClassVar[Targets] = Targets.LABELS
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", percent=True),
        Metric("exact", percent=True),
        Metric("f1"),
    )


SETTINGS = MultilabelConfig
