"""Writes one line per event into a file of the run's folder."""

from pathlib import Path
from typing import Any

from fedsketch.conf import Config
from fedsketch.conf.settings import TrackingSettings


class Tracker:
    def __init__(self, settings: TrackingSettings, folder: Path) -> None:
        self._file = (folder / "tracked.txt").open("a", buffering=1)

    def began(self, config: Config, done: int, guarantee: str) -> None:
        print("began", config.strategy.name, done, file=self._file)

    def round_done(self, row: dict[str, Any]) -> None:
        print("played", row["round"], file=self._file)

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        print("ended", summary["rounds"], file=self._file)
