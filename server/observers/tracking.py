"""Trackers, which are told of a run beside the display: TensorBoard, MLflow, or one of an installed package
(`tracking=...`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsketch.conf import Config
from fedsketch.conf.metric_names import NOISE_FREE
from fedsketch.conf.plugins import implementation
from fedsketch.errors import ConfigError
from fedsketch.server.observers import mlflow, tensorboard

if TYPE_CHECKING:
    from fedsketch.server.observers.observer import Display, Observer

NONE = "none"
BUILT_IN = {
    "tensorboard": (tensorboard.PACKAGE, tensorboard.TensorBoard),
    "mlflow": (mlflow.PACKAGE, mlflow.MLflow),
}


def tracked(config: Config, folder: Path, display: Display) -> Display:
    """Return a display that tells the display and the tracker of the configuration; the display itself if there is no
    tracker."""
    name = config.tracking.name
    if name == NONE:
        return display
    refuse_a_missing_tracker(config)
    make = BUILT_IN[name][1] if name in BUILT_IN else implementation("tracking", name)
    return TrackerAndDisplay(make(config.tracking, folder), display)


def refuse_a_missing_tracker(config: Config) -> None:
    """Raise ConfigError if the package of the tracker is not installed on the machine of the server."""
    name = config.tracking.name
    if name in BUILT_IN and find_spec(BUILT_IN[name][0]) is None:
        raise ConfigError(
            f"tracking={name} needs a package that is not installed here: pip install 'fedsketch[{name}]', or set "
            "tracking=none."
        )


class TrackerAndDisplay:
    """Tells the tracker first, and nothing that has no noise, because others may read it. An error of the
    tracker ends the run, so that the display does not announce a run whose record is lost."""

    def __init__(self, tracker: Observer, display: Display) -> None:
        self._tracker, self._display = tracker, display
        self._observers = (tracker, display)

    def notes(self, sentence: str) -> None:
        self._display.notes(sentence)

    def began(self, config: Config, done: int, guarantee: str) -> None:
        for observer in self._observers:
            observer.began(config, done, guarantee)

    def round_done(self, row: dict[str, Any]) -> None:
        noised = {key: value for key, value in row.items() if key not in NOISE_FREE}
        self._tracker.round_done(noised)
        self._display.round_done(row)

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        for observer in self._observers:
            observer.ended(summary, report)
