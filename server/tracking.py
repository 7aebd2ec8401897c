"""Who is told of a run besides the display: TensorBoard, MLflow, or a tracker of an installed package (`tracking=...`)."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsketch.conf import Config, ConfigError
from fedsketch.conf.plugins import implementation
from fedsketch.server.trackers import mlflow, tensorboard

if TYPE_CHECKING:
    from fedsketch.server.rounds import Observer

NONE = "none"
BUILT_IN = {
    "tensorboard": (tensorboard.PACKAGE, tensorboard.TensorBoard),
    "mlflow": (mlflow.PACKAGE, mlflow.MLflow),
}


def tracked(config: Config, folder: Path, display: "Observer") -> "Observer":
    """An observer that tells the display and the tracker that the configuration names; the display alone, where it names none."""
    name = config.tracking.name
    if name == NONE:
        return display
    refuse_a_missing_tracker(config)
    make = BUILT_IN[name][1] if name in BUILT_IN else implementation("tracking", name)
    return Both(make(config.tracking, folder), display)


def refuse_a_missing_tracker(config: Config) -> None:
    """Raise ConfigError if the package that the tracker writes with is not installed where the server's part of the run is."""
    name = config.tracking.name
    if name in BUILT_IN and find_spec(BUILT_IN[name][0]) is None:
        raise ConfigError(
            f"tracking={name} needs a package that is not installed here: pip install 'fedsketch[{name}]', or set tracking=none."
        )


class Both:
    """The tracker is told first, and what it raises ends the run: the display must not announce the end of a run whose record is lost."""

    def __init__(self, tracker: "Observer", display: "Observer") -> None:
        self._observers = (tracker, display)

    def began(self, config: Config, done: int, guarantee: str) -> None:
        for observer in self._observers:
            observer.began(config, done, guarantee)

    def played(self, row: dict[str, Any]) -> None:
        for observer in self._observers:
            observer.played(row)

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        for observer in self._observers:
            observer.ended(summary, report)
