from typing import ClassVar

from fedsketch import Metric, Positive, Targets, TaskSettings, frozen


@frozen
class VisitsTask(TaskSettings):
    most: Positive

    targets: ClassVar[Targets] = Targets.NUMBERS
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("deviance", higher_is_better=False),
        Metric("within_one", percent=True),
    )


SETTINGS = VisitsTask
