"""An observer of a run that remembers what it was told."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsketch.conf import Config


class Stopped(Exception):
    """As if somebody had stopped the run."""


@dataclass
class Recorder:
    """Keeps what it hears, and stops the run after a round if it is asked to."""

    stop_after: int | None = None
    done: int = -1
    guarantee: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)  # empty until the run has ended

    def began(self, config: Config, done: int, guarantee: str) -> None:
        self.done, self.guarantee = done, guarantee

    def notes(self, sentence: str) -> None:
        self.told.append(sentence)

    def round_done(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if row["round"] == self.stop_after:
            raise Stopped

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        self.summary = summary
