"""The folder that a run leaves behind: configuration, metrics, checkpoints, model, summary, report."""

import json
import logging
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import yaml

from fedsketch.conf import Config, to_json
from fedsketch.server.checkpoint import Checkpoint, CheckpointError
from fedsketch.server.report.run_page import write_report
from fedsketch.tasks.flat import FlatModel


class RunFolder:
    """Paths and formats, in one place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self._attempts = path / "attempts.jsonl"

    def note_overrides(self, overrides: Sequence[str]) -> None:
        """Keep what the run was started with, for `resume`; a run that is gone on with keeps its first note."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / "overrides.txt"
        if not file.exists():
            file.write_text("".join(f"{override}\n" for override in overrides))

    def log_here(self) -> None:
        """From here on everything logged goes into run.log too; and no longer into that of another run."""
        self.path.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(self.path / "run.log")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root = logging.getLogger()
        for old in [h for h in root.handlers if isinstance(h, logging.FileHandler)]:
            root.removeHandler(old)
            old.close()
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        logging.getLogger("httpx").setLevel(logging.WARNING)  # or every look for replies is a line

    def begin(self, config: Config) -> None:
        """Make the folder this run's; one that holds a run of another configuration is left as it is."""
        self.path.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(json.loads(to_json(config)), sort_keys=False)
        file = self.path / "config.yaml"
        if file.exists() and file.read_text() != text:
            raise CheckpointError(
                f"{self.path} holds a run with another configuration: choose another hydra.run.dir."
            )
        file.write_text(text)
        for log in (self.metrics, self._attempts):
            _write_rows(log, _rows(log))  # without what a kill cut off

    def latest_checkpoint(self, config: Config) -> Checkpoint | None:
        """The newest checkpoint; what the metrics tell of later rounds is dropped, because they will be played again."""
        checkpoint = Checkpoint.load_latest(self.checkpoints, to_json(config))
        kept = [] if checkpoint is None else self.read_metrics()[: checkpoint.round]
        _write_rows(self.metrics, kept)
        return checkpoint

    def read_metrics(self) -> list[dict[str, Any]]:
        return _rows(self.metrics)

    def append_metrics(self, row: dict[str, Any]) -> None:
        _append(self.metrics, row)

    def announce(self, round: int, cohort: int) -> None:
        """Write down that a cohort is about to be asked, before it is: a kill must not make the run forget what was seen."""
        _append(self._attempts, {"round": round, "cohort": cohort})

    def attempts_after(self, round: int) -> list[tuple[int, int]]:
        """(round, cohort) of every attempt that the checkpoint of `round` does not know of."""
        rows = [(row["round"], row["cohort"]) for row in _rows(self._attempts)]
        return [row for row in rows if row[0] > round]

    def finish(self, model: FlatModel, summary: dict[str, Any]) -> Path:
        """Write model, summary and report; returns the report's path."""
        tensors = {
            slot.name: model.vector[slot.start : slot.stop].view(slot.shape).cpu().clone()
            for slot in model.layout
        }
        safetensors.torch.save_file(tensors, self.path / "model.safetensors")
        (self.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        return write_report(self.path)


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text("".join(json.dumps(row) + "\n" for row in rows))
    unfinished.rename(path)


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    # What follows the last newline was cut off by a kill.
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def versions() -> dict[str, str]:
    """What the numbers of a run may depend on."""
    packages = ("fedsketch", "flwr", "torch", "numpy", "dp-accounting")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
