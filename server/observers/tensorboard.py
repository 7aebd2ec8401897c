"""`tracking=tensorboard`: the numbers of every round, for TensorBoard.

Nothing is written before the end of the first round, so a finished run that is resumed is not changed. A resumed run
hides the rounds that are repeated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsketch.conf import Config, to_json
from fedsketch.conf.tracking.tensorboard import TensorBoardSettings
from fedsketch.server.nested_values import numeric_values

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

PACKAGE = "tensorboard"


class TensorBoard:
    """An `Observer` that writes event files."""

    def __init__(self, settings: TensorBoardSettings, folder: Path) -> None:
        self._own = folder / "tensorboard"
        shared = settings.folder
        self._place = (
            self._own if shared is None else Path(shared).expanduser() / folder.absolute().name
        )
        self._writer: SummaryWriter | None = None

    def began(self, config: Config, done: int, guarantee: str) -> None:
        self._config, self._done, self._guarantee = config, done, guarantee

    def round_done(self, row: dict[str, Any]) -> None:
        if self._writer is None:
            self._writer = self._opened()
        for key, value in numeric_values({k: v for k, v in row.items() if k != "round"}).items():
            self._writer.add_scalar(key, value, row["round"])
        self._writer.flush()

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        if self._writer is not None:
            self._writer.add_text("report", str(report), summary["rounds"])
            self._writer.close()
            self._writer = None

    def _opened(self) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        if self._place == self._own:  # it shows what metrics.jsonl shows
            self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
        writer = SummaryWriter(str(self._place), purge_step=self._done + 1)
        writer.add_text("guarantee", self._guarantee, self._done + 1)
        settings = json.dumps(json.loads(to_json(self._config)), indent=2)
        writer.add_text("configuration", f"```\n{settings}\n```", self._done + 1)
        return writer
