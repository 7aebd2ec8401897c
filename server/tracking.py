"""A tracker of an installed package, told of a run besides the display (`tracking=...`, docs/extending.md)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsketch.conf import Config
from fedsketch.conf.plugins import built_in, implementation

if TYPE_CHECKING:
    from fedsketch.server.rounds import Observer


def tracked(config: Config, folder: Path, display: "Observer") -> "Observer":
    """An observer that tells the display and the tracker that the configuration names; the display alone, where it names none."""
    name = config.tracking.name
    if name in built_in("tracking"):
        return display
    return Both(implementation("tracking", name)(config.tracking, folder), display)


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
