"""Client updates per second of `runtime=cohort`, beside `runtime=local` and a plain Flower FedAvg app, in one run; on idle cores.

    python benchmarks/cohort.py [--rounds 12] [--data fashion_mnist] [--without-flower]

The mlp has 25,450 parameters. Data are random numbers of the shape of Fashion-MNIST, unless it is asked for. Two tables:

- Private updates: a client with 50 examples, DOME (clip, sketch, integers and noise included), 400 clients a round.
- FedAvg with one local step, 100 clients a round, as `benchmarks/simulation.py` has it, with 50 and with 600 examples for each client.

Start-up is excluded: the first two rounds are not counted. CPU time is that of this process: on busy cores it tells more than
the clock. Ray's processes are not in it.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Other files of this folder have the names of packages: look for those above it first.
sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console
from rich.table import Table
from simulation import CLIENTS, WARM_UP, config, plain

from fedsketch.client.app import app
from fedsketch.conf import Config, compose
from fedsketch.conf.schema import CohortRuntimeConfig
from fedsketch.runtime.cohort import CohortGrid
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.runtime.threads import fitting_threads
from fedsketch.server.rounds import Rounds
from fedsketch.tasks.job import Job

EXAMPLES = 60_000
RUNTIMES = {
    "cohort": ("cohort",),
    "cohort, noise=per_device": ("cohort", "runtime.noise=per_device"),
    "local": ("local",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--data", choices=("synthetic", "fashion_mnist"), default="synthetic")
    parser.add_argument("--without-flower", action="store_true", help="leave plain Flower out")
    asked = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    data = [f"data={asked.data}", "model.width=32"]
    if asked.data == "synthetic":
        data += [f"data.examples={EXAMPLES}", "data.test_examples=100", "data.classes=10"]
        data += ["data.shape=[1,28,28]"]
    print(f"load of the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    rounds = asked.rounds
    speeds = {name: _timed(_private(rounds, data, *how)) for name, how in RUNTIMES.items()}
    _show("DOME, 400 clients of 50 examples a round", speeds, "local")
    for examples in (50, 600):
        shared = [*data, f"clients.total={EXAMPLES // examples}"]
        speeds = {
            name: _timed(config(rounds, runtime, [*shared, *options]))
            for name, (runtime, *options) in RUNTIMES.items()
        }
        peer = "local"
        if not asked.without_flower:
            peer = "plain Flower"
            speeds[peer] = (plain(config(rounds, "simulation", shared)), None)
        _show(f"FedAvg, {CLIENTS} clients of {examples} examples a round", speeds, peer)


def _private(rounds: int, data: list[str], runtime: str, *options: str) -> Config:
    return compose(
        [
            *("strategy=dome", "secagg=semi_honest", "device=cpu", f"runtime={runtime}", *data),
            *("clients.total=1200", "clients.per_round=400", f"rounds={rounds}", *options),
            *(f"evaluate_every={rounds}", f"checkpoint_every={rounds}"),
        ]
    )


class _Clock:
    """Watches a run, and notes clock and CPU after each round."""

    def __init__(self) -> None:
        self.notes: list[tuple[float, float, int]] = []

    def began(self, config: Config, done: int, guarantee: str) -> None: ...

    def played(self, row: dict[str, Any]) -> None:
        self.notes.append((time.monotonic(), time.process_time(), row["clients"]))

    def ended(self, summary: dict[str, Any], report: Path) -> None: ...


def _timed(settings: Config) -> tuple[float, float | None]:
    """Updates per second, and milliseconds of CPU for each; without the last round, which is evaluated."""
    clock = _Clock()
    with (
        tempfile.TemporaryDirectory() as folder,
        simulated_devices(settings),
        fitting_threads(Job(settings).parameters),
    ):
        cohort = isinstance(settings.runtime, CohortRuntimeConfig)
        grid = CohortGrid(app, settings) if cohort else LocalGrid(app, settings.clients.total)
        Rounds(settings, Path(folder) / "run", clock).play(grid)
    (start, cpu, _), *counted, (stop, cpu_then, last) = clock.notes[WARM_UP - 1 : -1]
    updates = sum(clients for *_, clients in counted) + last
    return updates / (stop - start), 1e3 * (cpu_then - cpu) / updates


def _show(title: str, speeds: dict[str, tuple[float, float | None]], peer: str) -> None:
    table = Table(title=title)
    for heading in ("", "updates per second", "CPU ms per update", f"ratio to {peer}"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, (speed, cpu) in speeds.items():
        ratio = speed / speeds[peer][0]
        table.add_row(name, f"{speed:,.0f}", "" if cpu is None else f"{cpu:.2f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
