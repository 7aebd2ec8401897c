"""Runs for tables: played in this process or in several, and recorded as JSON lines, so that a table can be resumed.

A record is found by its overrides and by a hash of the configuration that they compose: where a preset or a default
has changed since, the run is played again. Where data lie is no part of either.
"""

import hashlib
import json
import logging
import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from fedsketch.client.app import app
from fedsketch.conf import Config, compose, to_json
from fedsketch.conf.schema import CohortRuntimeConfig
from fedsketch.runtime.batched_grid import BatchedGrid
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.server.rounds import Rounds
from fedsketch.strategies.algorithm import Strategy

Record = dict[str, Any]


class Runs:
    """What runs ended with. One that the file already holds is not played again. `data_root` is
    where data sets lie on this machine, which is not recorded. `kept` are the keys of a record that are; None: all."""

    def __init__(
        self,
        file: Path | None,
        threads: int = 1,
        data_root: str | None = None,
        kept: Sequence[str] | None = None,
    ) -> None:
        self._file = file
        self._data_root = data_root
        self._kept = kept
        self._known: dict[tuple[tuple[str, ...], str], Record] = {}
        self._hashes: dict[tuple[str, ...], str] = {}  # of the configurations as they are now
        torch.set_num_threads(threads)
        if file is not None and file.exists():
            for row in read_records(file):
                self._known[tuple(row["overrides"]), row.get("config", "")] = row

    def known(self, overrides: Sequence[str]) -> Record | None:
        """Return the record of a run, if there is one of the configuration as it is now."""
        key = tuple(overrides)
        if key not in self._hashes:
            self._hashes[key] = fingerprint(compose(_placed(key, self._data_root)))
        return self._known.get((key, self._hashes[key]))

    def play(self, overrides: Sequence[str]) -> Record:
        """Return the record of a run, which is played if there is none."""
        return self.known(overrides) or self._keep(_record(tuple(overrides), self._data_root))

    def play_all(self, runs: Iterable[Sequence[str]], workers: int) -> Iterator[Record]:
        """Yield those of the runs that are not known yet, as they end: each worker is a process with one thread."""
        missing = [tuple(run) for run in runs if self.known(run) is None]
        if workers == 1 or len(missing) < 2:
            yield from map(self.play, missing)
            return
        context = get_context("spawn")
        with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
            futures = [pool.submit(_record, run, self._data_root) for run in missing]
            try:
                for future in as_completed(futures):
                    yield self._keep(future.result())
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def accuracies(self, overrides: Sequence[str], seeds: int) -> list[float]:
        """Return accuracies in percent, one for each seed."""
        return [float(self.play([*overrides, f"seed={s}"])["accuracy"]) for s in range(seeds)]

    def _keep(self, record: Record) -> Record:
        wanted = None if self._kept is None else {"overrides", "config", *self._kept}
        row = {key: value for key, value in record.items() if wanted is None or key in wanted}
        self._known[tuple(row["overrides"]), row["config"]] = row
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return row


def read_records(file: Path) -> list[Record]:
    """Return all whole lines of a file; the last one may have been cut off when a run was interrupted."""
    rows = []
    for line in file.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def fingerprint(config: Config) -> str:
    """Return a short hash of all that a configuration says, but where data lie."""
    tree = json.loads(to_json(config))
    tree["data"].pop("root", None)
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


class Played:
    """What a run said about itself, and its strategy."""

    config: Config
    strategy: Strategy[Any]

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.processor: list[float] = []  # seconds of this process, at the end of each round
        self.summary: dict[str, Any] = {}

    def began(self, config: Config, done: int, guarantee: str) -> None: ...

    def notes(self, sentence: str) -> None: ...

    def round_done(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.processor.append(time.process_time())

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        self.summary = summary


def play(overrides: Sequence[str]) -> Played:
    """Return one run, from its overrides to its end, in runtime=local or cohort."""
    config, played = compose(list(overrides)), Played()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with simulated_devices(config), tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(config, Path(folder), played)
        if isinstance(config.runtime, CohortRuntimeConfig):
            rounds.run(BatchedGrid(app, config, rounds.workload))
        else:
            rounds.run(LocalGrid(app, config.clients.total))
    played.config, played.strategy = config, rounds.strategy
    return played


def _placed(overrides: Sequence[str], data_root: str | None) -> list[str]:
    """Return the overrides with the place of the data, if the data set has files."""
    own = list(overrides)
    if data_root is None or compose(own).data.root is None:
        return own
    return [*own, f"data.root={data_root}"]


def _record(overrides: tuple[str, ...], data_root: str | None) -> Record:
    began, played = time.monotonic(), play(_placed(overrides, data_root))
    last, summary, strategy = played.rows[-1], played.summary, played.strategy
    mechanism = strategy.mechanism(len(played.rows), played.config.clients.per_round)
    # Of the first round no start is known, and the last one evaluates.
    processor = [later - then for then, later in pairwise(played.processor[:-1])]
    record: Record = {
        "overrides": list(overrides),
        "config": fingerprint(played.config),
        "accuracy": 100 * float(summary["accuracy"]),
        "update_seconds": sum(row["seconds"]["update"] for row in played.rows),
        "seconds": time.monotonic() - began,
        "processor_seconds_per_round": statistics.median(processor) if processor else None,
        "rounds": len(played.rows),
        "parameters": strategy.model.size,
        "numbers": mechanism.sent(strategy.noise.dim),
        "clip": last.get("clip"),  # of the last round, where it is adaptive
        **{key: summary[key] for key in ("epsilon", "adversaries", "noise_multiplier")},
        **{key: summary[key] for key in ("uplink_bytes", "downlink_bytes")},
    }
    if last.get("validation") is not None:
        record["validation"] = 100 * float(last["validation"]["accuracy"])
    return record


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and its standard error (0 for one value)."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.mean(values), error
