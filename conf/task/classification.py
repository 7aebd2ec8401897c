"""One of several classes for each example."""

from __future__ import annotations

from typing import ClassVar

from fedsketch.conf.settings import Metric, TaskSettings
from fedsketch.conf.targets import Targets
from fedsketch.conf.types import frozen


@frozen
class ClassificationConfig(TaskSettings):
    targets: ClassVar[Targets] = Targets.CLASSES
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("accuracy", percent=True),)


SETTINGS = ClassificationConfig
