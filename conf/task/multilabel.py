"""Any number of labels."""

from typing import ClassVar

from fedsketch.conf.settings import Metric, TaskSettings
from fedsketch.conf.types import frozen
from fedsketch.tasks.targets import Targets


@frozen
class MultilabelConfig(TaskSettings):
    targets: ClassVar[Targets] = Targets.labels
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", percent=True),
        Metric("exact", percent=True),
        Metric("f1"),
    )


SETTINGS = MultilabelConfig
