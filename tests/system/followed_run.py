"""A run on a real SuperLink that a test follows, while it disturbs the nodes."""

import os
import re
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.client.guard.ledger_state import LedgerState
from fedsketch.conf import Config, compose
from fedsketch.runtime.children import descendants
from fedsketch.runtime.processes import Network
from fedsketch.runtime.submission import follow, submit

# Nine nodes, four of which may drop out of the round; one that loses more is not tried again.
NODES = 9


SETTINGS = [
    "data=synthetic",
    "data.examples=100",
    "data.test_examples=20",
    "data.shape=[1,2,3]",
    "data.classes=3",
    "model=logistic",
    "device=cpu",
    "rounds=1",
    "strategy=dp_fedavg",
    "strategy.local.steps=1",
    f"clients.total={NODES}",
    f"clients.per_round={NODES}",
    "clients.tolerated_dropouts=0.45",
    "clients.retries=0",
    "secagg=pairwise",
    "secagg.colluders=0",
    "secagg.patience=0.5",
    "secagg.stage_timeout=300",
    "privacy.epsilon=null",
    "privacy.noise_multiplier=1.0",
    "runtime=processes",
]
PATIENCE = 600.0


@dataclass
class Recorder:
    """An observer that keeps what it hears."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] | None = None

    def began(self, config: Config, done: int, guarantee: str) -> None:
        """Nothing to keep."""

    def notes(self, sentence: str) -> None: ...

    def round_done(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        self.summary = summary


@dataclass
class Play:
    """A run on a network of processes, and the levers to disturb it."""

    network: Network
    folder: Path
    heard: Recorder
    thread: threading.Thread
    problems: list[BaseException]

    def wait_for(self, client: int, words: str, times: int = 1) -> None:
        """Until a node has said something so many times."""
        log = self.network.private / f"node-{client}.log"
        deadline = time.monotonic() + PATIENCE
        while not log.exists() or len(re.findall(words, log.read_text(), re.DOTALL)) < times:
            assert not self.problems, self.problems
            assert self.thread.is_alive(), f"the run ended before node {client} said {words}"
            assert time.monotonic() < deadline, f"node {client} never said {words}"
            time.sleep(0.05)

    def wait_for_round(self, number: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self.heard.rows) < number:
            assert not self.problems, self.problems
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def signal(self, client: int, number: signal.Signals) -> None:
        """To a node and all its processes, at once."""
        for pid in descendants([self.network.pid(client)]):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def ledger(self, client: int) -> LedgerState:
        """What a device's ledger says, every line of it checked."""
        place = self.network.private / "nodes" / str(client) / "device"
        return DeviceGuard(place).ledger.verified()[0]

    def logs(self) -> str:
        files = [*self.network.private.glob("*.log"), self.folder / "run.log"]
        return "\n".join(path.read_text(errors="replace") for path in files)


def begin(network: Network, settings: list[str], name: str) -> Play:
    """Submit a run into the folder of this name, and follow it in a thread."""
    folder, config = network.folder.parent / name, compose(settings)
    heard, problems = Recorder(), list[BaseException]()

    def watch() -> None:
        try:
            run = submit(network.connection, settings, name, send=False).run
            follow(network.connection, run, config, folder, heard)
        except Exception as problem:
            problems.append(problem)

    thread = threading.Thread(target=watch)
    thread.start()
    return Play(network, folder, heard, thread, problems)
