"""Runs for tables: played in this process, and written down as JSON lines, so that a table can be gone on with."""

import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedsketch.client.app import app
from fedsketch.conf import Config, compose
from fedsketch.conf.schema import CohortRuntimeConfig
from fedsketch.runtime.cohort import CohortGrid
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import run_local, run_with
from fedsketch.server.app import serve
from fedsketch.server.rounds import Rounds
from fedsketch.strategies.shared.base import FederatedStrategy


class Runs:
    """What runs ended with, by their overrides. One that the file already holds is not played again."""

    def __init__(self, file: Path | None, threads: int = 1) -> None:
        self._file = file
        self._known: dict[tuple[str, ...], dict[str, Any]] = {}
        torch.set_num_threads(threads)
        if file is not None and file.exists():
            for line in file.read_text().splitlines():
                row = json.loads(line)
                self._known[tuple(row["overrides"])] = row

    def play(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The summary of the run and all rounds' metrics, the accuracy in percent."""
        key = tuple(overrides)
        if key not in self._known:
            row = _row(list(overrides))
            self._known[key] = row
            if self._file is not None:
                with self._file.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        return self._known[key]

    def accuracies(self, overrides: Sequence[str], seeds: int) -> list[float]:
        """In percent, one for each seed."""
        return [float(self.play([*overrides, f"seed={s}"])["accuracy"]) for s in range(seeds)]


class Played:
    """What a run said about itself, and its strategy."""

    strategy: FederatedStrategy

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}

    def began(self, config: Config, done: int, guarantee: str) -> None: ...

    def played(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        self.summary = summary


def play(overrides: Sequence[str]) -> Played:
    """One run, from its overrides to its end, in this process: `runtime=local` or `runtime=cohort`."""
    config, played = compose(list(overrides)), Played()
    with simulated_devices(config), tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(config, Path(folder), played)
        if isinstance(config.runtime, CohortRuntimeConfig):
            run_with(serve(rounds), CohortGrid(app, config, rounds.job))
        else:
            run_local(serve(rounds), app, config.clients.total)
    played.strategy = rounds.strategy
    return played


def _row(overrides: list[str]) -> dict[str, Any]:
    began, played = time.monotonic(), play(overrides)
    kept = ("epsilon", "noise_multiplier", "uplink_bytes")
    return {
        "overrides": overrides,
        "accuracy": 100 * float(played.summary["accuracy"]),
        "update_seconds": sum(row["seconds"]["update"] for row in played.rows),
        "seconds": time.monotonic() - began,
        "clip": played.rows[-1].get("clip"),  # of the last round, where it is adaptive
        **{key: played.summary[key] for key in kept},
    }


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error (0 for one value)."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.mean(values), error
