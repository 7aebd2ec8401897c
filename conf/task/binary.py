"""Yes or no."""

from typing import ClassVar

from fedsketch.conf.settings import Metric, TaskSettings
from fedsketch.conf.types import Positive, frozen
from fedsketch.tasks.targets import Targets


@frozen
class BinaryConfig(TaskSettings):
    positive_weight: Positive

    targets: ClassVar[Targets] = Targets.classes
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", percent=True),
        Metric("auc"),
        Metric("f1"),
    )


SETTINGS = BinaryConfig
