"""Who is told of a run while it goes on: displays, event streams, trackers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from fedsketch.conf import Config


class Observer(Protocol):
    """Is told when a run begins, after each round, and when it ends."""

    def began(self, config: Config, done: int, guarantee: str) -> None: ...

    def round_done(self, row: dict[str, Any]) -> None: ...

    def ended(self, summary: dict[str, Any], report: Path) -> None: ...


class Display(Observer, Protocol):
    """Shows a run to people, and tells them in between what they should know."""

    def notes(self, sentence: str) -> None: ...
