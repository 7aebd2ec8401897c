from typing import ClassVar

from fedsketch.conf.settings import Metric, TaskSettings
from fedsketch.conf.targets import Targets
from fedsketch.conf.types import Positive, frozen


@frozen
class VisitsTask(TaskSettings):
    most: Positive

    targets: ClassVar[Targets] = Targets.NUMBERS
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("deviance", higher_is_better=False),
        Metric("within_one", percent=True),
    )


SETTINGS = VisitsTask
