"""A run on a real SuperLink that a test follows, while it disturbs the nodes."""

import os
import re
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.client.guard.ledger_state import LedgerState
from fedsketch.conf import compose
from fedsketch.runtime.children import descendants
from fedsketch.runtime.processes import Network
from fedsketch.runtime.submission import follow, submit
from tests.observers import Recorder
from tests.small import small

NODES = 9
PATIENCE = 600.0


def for_nodes(count: int, *overrides: str) -> list[str]:
    """One round, four ninths of which may drop out; one that loses more is not tried again."""
    clients = "clients.tolerated_dropouts=0.45 clients.retries=0 clients.timeout=600"
    masks = "secagg=pairwise secagg.colluders=0 secagg.patience=0.5 secagg.stage_timeout=300"
    noise = "privacy.epsilon=null privacy.noise_multiplier=1"
    return small("runtime=processes rounds=1", clients, masks, noise, *overrides, clients=count)


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
