"""The number by which runs are compared: the first metric of their task, or what the user asks for."""

from __future__ import annotations

from collections.abc import Sequence

from fedsketch.conf.plugins import settings_class
from fedsketch.conf.settings import LOSS, Metric, TaskSettings
from fedsketch.errors import ConfigError, ReportError
from fedsketch.server.report.run_record import Run, at

_OLDEST = "classification"  # the task of runs that are older than the choice of tasks


def metrics_of(run: Run) -> tuple[Metric, ...]:
    """Return the metrics of a run's task; the first one is for comparisons. For a task that is not installed only the
    loss is known."""
    name = str(at(run.config, "task", "name") or _OLDEST)
    try:
        task = settings_class("task", name)
    except ConfigError:
        return (LOSS,)
    assert issubclass(task, TaskSettings)
    return (*task.metrics, LOSS)


def judged_by(runs: Sequence[Run], asked: str | None = None) -> Metric:
    """Return the metric by which runs are compared: the one that was asked for, or the first one that all their tasks
    have.

    Any number of a round can be asked for, with a dot before a nested key: `f1`, `validation.f1`, `seconds.round`.
    """
    known = {metric.name: metric for run in runs for metric in metrics_of(run)}
    if asked is None:
        names = [{metric.name for metric in metrics_of(run)} for run in runs]
        return next(m for m in metrics_of(runs[0]) if all(m.name in others for others in names))
    if not any(run.series(*asked.split("."))[1] for run in runs):
        raise ReportError(
            f"No run has a number '{asked}': ask for one of {', '.join(_numbers(runs))}."
        )
    last = asked.split(".")[-1]
    return known[last]._replace(name=asked) if last in known else Metric(asked)


def _numbers(runs: Sequence[Run]) -> list[str]:
    """Return what can be asked for: the metrics that at least one run has."""
    names = dict.fromkeys(metric.name for run in runs for metric in metrics_of(run))
    asked = [name for plain in names for name in (plain, f"validation.{plain}")]
    return [name for name in asked if any(run.series(*name.split("."))[1] for run in runs)] or [
        "loss"
    ]
