"""The folder of a run: which files it has, and what is in them.

Everything that reads or writes one of these files does it through `RunFolder`. Importing this module needs neither
torch nor matplotlib, because the report and the submitter of a deployment do not need them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import yaml

from fedsketch.conf import Config, from_json, to_json
from fedsketch.errors import CheckpointError, ConfigError
from fedsketch.server.checkpoint import Checkpoint
from fedsketch.tasks.models.interface import Interface

if TYPE_CHECKING:
    from fedsketch.tasks.models.flat_model import FlatModel

# The folder for the run folders of a ServerApp that a SuperLink starts; set by the operator of the SuperLink.
RUNS_VARIABLE = "FEDSKETCH_RUNS"
_TENSORBOARD = re.compile(r"tensorboard/events\.out\.tfevents(\.[A-Za-z0-9_-]+)*")

_HIDDEN = 0o600  # the mode of files that only the server's own user may read


class Attempt(NamedTuple):
    """A cohort of this size was asked for its part of a round, or to evaluate the model after that round."""

    round: int
    cohort: int
    evaluation: bool = False


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.overrides = path / "overrides.txt"
        self.metrics = path / "metrics.jsonl"
        self.attempts = path / "attempts.jsonl"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model.safetensors"
        self.best = path / "best.safetensors"
        self.interface = path / "model.json"
        self.schema = path / "schema.yaml"
        self.card = path / "MODEL_CARD.md"
        self.summary = path / "summary.json"
        self.report = path / "report.html"
        self.log = path / "run.log"
        self.plan = path / "plan.json"
        self.plan_figure = path / "plan.svg"
        self.submission = path / "submitted.json"
        self.mlflow_run = path / "mlflow_run.txt"
        self.processes = path / "processes"  # keys, state and logs of runtime=processes
        self.command = path / "command.lock"  # locked while a command runs or follows the run
        self.lock = (
            path / "lock"
        )  # locked while the rounds are executed, which may be in another process

    @classmethod
    def below(cls, folder: Path) -> Iterator[RunFolder]:
        """Return all runs in a folder and below it."""
        return (cls(metrics.parent) for metrics in folder.rglob(cls(folder).metrics.name))

    def results(self) -> Iterator[Path]:
        """Yield the files that are useful on other machines too."""
        for path in sorted(self.path.rglob("*")):
            if path.is_file() and self.is_result(path.relative_to(self.path).as_posix()):
                yield path

    def is_result(self, name: str) -> bool:
        """Return whether a file of this name, from the folder on, may come from another machine. None of these files
        decides what a run does: it may be another than the one that was asked for."""
        files = (self.metrics, self.model, self.best, self.interface, self.schema)
        pages = (self.card, self.summary, self.report, self.log)
        allowed = {path.name for path in (*files, *pages)}
        return name in allowed or _TENSORBOARD.fullmatch(name) is not None

    def mode_of(self, name: str, config: Config) -> int | None:
        """Return the mode of a result that arrives from another machine; None: as new files usually have it. What is
        only for the server is for this user alone."""
        released = (self.model, self.best, self.interface, self.schema, self.card)
        hidden = config.metrics_are_secret and name not in {path.name for path in released}
        return _HIDDEN if hidden else None

    # How a run was started

    @contextmanager
    def claimed(self, overrides: Sequence[str]) -> Iterator[None]:
        """Make the folder of a new run, hold it for this command, and write the run's overrides into it."""
        with self.reserved():
            if self.config.exists():
                raise ConfigError(
                    f"{self.path} holds a run already: resume it with resume={self.path}, or set another hydra.run.dir."
                )
            try:
                self._write_overrides(overrides)
            except OSError as error:
                raise self._unwritable(error) from error
            yield

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Reserve the folder for this command, before anything else is written into it: no other command may run or
        follow a run in it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = self.command.open("a")
        except OSError as error:
            raise self._unwritable(error) from error
        with file:
            self._lock(file)
            yield

    def _lock(self, file: TextIO) -> None:
        """Lock a file of this folder. The lock is released when the process ends, even if it is killed."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"The run in {self.path} is being executed by another process: wait until it ends, or stop it first."
            ) from None

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"The output folder {self.path} cannot be written ({error.strerror}): set hydra.run.dir to one that can."
        )

    def note_overrides(self, overrides: Sequence[str]) -> None:
        """Write the overrides of the run, for `resume`. A resumed run keeps its first overrides."""
        if not self.overrides.exists():
            self._write_overrides(overrides)

    def read_overrides(self) -> list[str]:
        return self.overrides.read_text().splitlines()

    def _write_overrides(self, overrides: Sequence[str]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.overrides.write_text("".join(f"{override}\n" for override in overrides))

    def read_config(self) -> Config:
        """Return the configuration of the run, checked again."""
        return from_json(json.dumps(yaml.safe_load(self.config.read_text())))

    def write_config(self, config: Config) -> None:
        self.config.write_text(_yaml(config))

    def write_plan(self, plan: dict[str, Any], figure: str) -> None:
        """Write the plan of a run, and its chart."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.plan.write_text(json.dumps(plan, indent=2) + "\n")
            self.plan_figure.write_text(figure)
        except OSError as error:
            raise self._unwritable(error) from error

    def read_submission(self) -> Any:
        """Return what the submitter wrote about a run on a server elsewhere; None if there is nothing."""
        return json.loads(self.submission.read_text()) if self.submission.exists() else None

    def write_submission(self, note: dict[str, Any]) -> None:
        self.submission.write_text(json.dumps(note) + "\n")

    def read_mlflow_run(self) -> str | None:
        """Return the id of the MLflow run that belongs to this run; None if there is none."""
        return self.mlflow_run.read_text().strip() if self.mlflow_run.exists() else None

    def write_mlflow_run(self, run: str) -> None:
        self.mlflow_run.write_text(f"{run}\n")

    # What a run writes

    def log_here(self) -> None:
        """Log into this run's run.log from now on, and no longer into that of another run."""
        self.path.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(self.log)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root = logging.getLogger()
        for old in [h for h in root.handlers if isinstance(h, logging.FileHandler)]:
            root.removeHandler(old)
            old.close()
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        # Otherwise every request for replies is logged.
        logging.getLogger("httpx").setLevel(logging.WARNING)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock, so that only one process executes its rounds."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.lock.open("a") as file:
            self._lock(file)
            yield

    def begin(self, config: Config) -> None:
        """Make this folder that of the run. A folder that holds a run with another configuration is left as it is."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.config.exists() and not self._has(config):
            raise CheckpointError(
                f"{self.path} holds a run with another configuration: choose another hydra.run.dir."
            )
        if self.read_summary() is not None:
            return  # a finished run is not changed
        self.write_config(config)
        self._hide_metrics(config)
        mode = _HIDDEN if config.metrics_are_secret else None
        for log in (self.metrics, self.attempts):
            _write_rows(log, _rows(log), mode)  # without a last line that a kill has cut off

    def _has(self, config: Config) -> bool:
        """Return whether this is the configuration of the run. One that an earlier version wrote has defaults for keys
        that it did not know."""
        if self.config.read_text() == _yaml(config):
            return True
        try:
            return self.read_config() == config
        except (TypeError, yaml.YAMLError, ConfigError):
            return False

    def _hide_metrics(self, config: Config) -> None:
        """Take the files that show the numbers of rounds from other users of the machine, if a draw that may have to
        stay secret decides about them, or one has no noise. Files that are written later have the mode of
        `metrics`."""
        if config.metrics_are_secret:
            for path in (self.metrics, self.attempts, self.log, self.summary, self.report):
                if path.exists():
                    path.chmod(_HIDDEN)

    @property
    def mode(self) -> int | None:
        """The mode of `metrics`, and so of everything that shows its numbers; None if there are none."""
        return _mode(self.metrics)

    def write_interface(self, interface: Interface) -> None:
        """Write a description of the model, for whoever loads it without the data."""
        self.interface.write_text(json.dumps(asdict(interface)) + "\n")

    def read_interface(self) -> Interface:
        content: dict[str, Any] = json.loads(self.interface.read_text())
        whole: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in content.items()
        }
        return Interface(**whole)

    def latest_checkpoint(self, config: Config) -> Checkpoint | None:
        """Return the newest checkpoint. Metrics of later rounds are removed, because these rounds will be repeated."""
        checkpoint = Checkpoint.load_latest(self.checkpoints, to_json(config))
        kept = [] if checkpoint is None else self.read_metrics()[: checkpoint.round]
        _write_rows(self.metrics, kept)
        return checkpoint

    def read_metrics(self) -> list[dict[str, Any]]:
        return _rows(self.metrics)

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add the row of a round. It survives the end of the process at once, and that of the machine after
        `sync_metrics`: a round without a checkpoint is repeated anyway."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def sync_metrics(self) -> None:
        """Bring all rows to the disk, before a checkpoint says that their rounds are done."""
        with self.metrics.open("a") as file:
            os.fsync(file.fileno())

    def announce(self, attempt: Attempt) -> None:
        """Record on the disk that a cohort is about to be asked, before it is asked."""
        with self.attempts.open("a") as file:
            file.write(json.dumps(attempt._asdict()) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def attempts_since(self, known: int) -> list[Attempt]:
        """Return every recorded attempt after the first `known` ones, whichever process made it."""
        rows = _rows(self.attempts, "cohort")[known:]
        return [Attempt(row["round"], row["cohort"], bool(row.get("evaluation"))) for row in rows]

    def read_summary(self) -> dict[str, Any] | None:
        """Return how the run ended; None if it has not ended."""
        if not self.summary.exists():
            return None
        summary: dict[str, Any] = json.loads(self.summary.read_text())
        return summary

    def finish(self, model: FlatModel, summary: dict[str, Any]) -> Path:
        """Write model, summary and report; returns the report's path."""
        from fedsketch.server.report.run_page import write_report

        _write_whole(self.model, _weights(model))
        text = (json.dumps(summary, indent=2) + "\n").encode()
        _write_whole(self.summary, text, self.mode)
        return write_report(self.path)

    def write_card(self, text: str) -> None:
        self.card.write_text(text, encoding="utf-8")

    def write_best(self, model: FlatModel) -> None:
        """Write these weights as the best so far."""
        _write_whole(self.best, _weights(model))

    def forget_best(self) -> None:
        self.best.unlink(missing_ok=True)


def _yaml(config: Config) -> str:
    return yaml.safe_dump(json.loads(to_json(config)), sort_keys=False)


def _weights(model: FlatModel) -> bytes:
    import safetensors.torch

    from fedsketch.tasks.models.lora import plain_state

    return safetensors.torch.save(plain_state(model.module))


def _mode(path: Path) -> int | None:
    """Return the mode of a file; None if there is no such file."""
    return stat.S_IMODE(path.stat().st_mode) if path.exists() else None


def create(path: Path, mode: int | None) -> None:
    """Make an empty file, or leave it as it is, with this mode. None: as new files usually have it."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666 if mode is None else mode))
    if mode is not None:
        path.chmod(mode)


def _write_whole(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file such that a kill leaves either the old contents or the new ones. Without a `mode` that of the old
    file stays."""
    unfinished = path.with_suffix(".unfinished")
    create(unfinished, _mode(path) if mode is None else mode)
    unfinished.write_bytes(content)
    unfinished.rename(path)


def _write_rows(path: Path, rows: list[dict[str, Any]], mode: int | None = None) -> None:
    _write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode(), mode)


def _rows(path: Path, *keys: str) -> list[dict[str, Any]]:
    """Return the lines of a file, each of which must have a round and these keys."""
    if not path.exists():
        return []
    rows = []
    # Text after the last newline was cut off by a kill.
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not {"round", *keys} <= row.keys():
            raise CheckpointError(
                f"{path}, line {number}, is damaged: restore the line, or start a new run."
            )
        rows.append(row)
    return rows


def versions() -> dict[str, str]:
    """Return the versions of everything on which the numbers of a run may depend."""
    packages = ("fedsketch", "flwr", "torch", "numpy", "dp-accounting")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
