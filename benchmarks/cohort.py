"""Client updates per second of `runtime=cohort`, beside `runtime=local` and a plain Flower FedAvg app, in one run; on
idle cores.

    python benchmarks/cohort.py [--rounds 12] [--data fashion_mnist] [--data-root FOLDER] [--without-flower] [--quick]

The mlp has 25,450 parameters. Data are random numbers of the shape of Fashion-MNIST, unless it is asked for. Tables:

- Private updates: a client with 50 examples, DOME (clip, sketch, integers and noise included), 1,200 clients a round.
- FedAvg with 100 clients a round, as `benchmarks/simulation.py` has it: one local step over a client's 50 or 600
  examples, and one epoch over 600 examples in batches of 32, which is how Flower's quickstart trains.
- Memory: the largest that a process became, with 100 clients a round of 1,000 and of 10,000.

Start-up is excluded: the first two rounds are not counted. CPU time is that of all processes, Ray's among them: on
busy cores its ratio tells more than that of the clock. --quick plays fewer rounds, and leaves out `runtime=local` but
for DOME.
"""

import argparse
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Other files of this folder have the names of packages: look for those above it first.
sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console
from rich.table import Table
from simulation import CLIENTS, ONE_EPOCH, ONE_STEP, WARM_UP, Speed, config, plain

from fedsketch.client.app import app
from fedsketch.conf import Config, compose
from fedsketch.conf.schema import CohortRuntimeConfig
from fedsketch.runtime.batched_grid import BatchedGrid
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.runtime.memory import kept_memory
from fedsketch.runtime.threads import fitting_threads
from fedsketch.server.rounds import Rounds
from fedsketch.tasks.workload import Workload

EXAMPLES = 60_000
WORK = (
    ("one step over 50 examples", 50, ONE_STEP),
    ("one step over 600 examples", 600, ONE_STEP),
    ("an epoch over 600 examples in batches of 32", 600, ONE_EPOCH),
)
RUNTIMES = {
    "cohort": ("cohort",),
    "cohort, noise=per_device": ("cohort", "runtime.noise=per_device"),
    "local": ("local",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--data", choices=("synthetic", "fashion_mnist"), default="synthetic")
    parser.add_argument("--data-root", help="where Fashion-MNIST is, or is downloaded to")
    parser.add_argument("--without-flower", action="store_true", help="leave plain Flower out")
    parser.add_argument("--quick", action="store_true", help="a few minutes")
    parser.add_argument(
        "--memory-of", type=int, help="print the memory of a run of so many clients"
    )
    asked = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if asked.memory_of:
        print(memory_of(asked.memory_of))
        return
    data = [f"data={asked.data}", "model.width=32"]
    if asked.data == "synthetic":
        data += [f"data.examples={EXAMPLES}", "data.test_examples=100", "data.classes=10"]
        data += ["data.shape=[1,28,28]"]
    if asked.data_root:
        data += [f"data.root={asked.data_root}"]
    print(f"load of the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    rounds = min(asked.rounds, 8) if asked.quick else asked.rounds
    speeds = {name: _timed(_private(rounds, data, *how)) for name, how in RUNTIMES.items()}
    _show("DOME, 1,200 clients of 50 examples a round", speeds, "local")
    few = {"cohort": RUNTIMES["cohort"]}
    for title, examples, local in WORK:
        shared = [*data, f"clients.total={EXAMPLES // examples}"]
        # Rounds of `runtime=cohort` are short: more of them, so that the clock has something to measure.
        speeds = {
            name: _timed(
                config(
                    4 * rounds if name == "cohort" else rounds, runtime, [*shared, *options], local
                )
            )
            for name, (runtime, *options) in (few if asked.quick else RUNTIMES).items()
        }
        peer = "cohort" if asked.quick else "local"
        if not asked.without_flower:
            peer = "plain Flower"
            speeds[peer] = plain(config(rounds, "simulation", shared, local))
        _show(f"FedAvg, {CLIENTS} clients a round: {title}", speeds, peer)
    _show_memory({clients: _memory_apart(clients) for clients in (1_000, 10_000)})


def memory_of(clients: int) -> int:
    """Return the largest that this process becomes in a run of so many clients, in bytes; 100 a round, and the data
    always the same."""
    settings = config(
        5,
        "cohort",
        [
            *("data=synthetic", "data.examples=20000", "data.test_examples=100", "model.width=32"),
            *("data.classes=10", "data.shape=[1,28,28]", f"clients.total={clients}"),
        ],
    )
    _timed(settings)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _memory_apart(clients: int) -> int:
    """Return the same of a process of its own: what others of this one needed would hide it."""
    command = [sys.executable, __file__, "--memory-of", str(clients)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _show_memory(peaks: dict[int, int]) -> None:
    table = Table(title=f"Memory of runtime=cohort, {CLIENTS} clients a round, 20,000 examples")
    for heading in ("clients", "peak, MB", "ratio to the first"):
        table.add_column(heading, justify="right")
    first = next(iter(peaks.values()))
    for clients, peak in peaks.items():
        table.add_row(f"{clients:,}", f"{peak / 1e6:,.0f}", f"{peak / first:.2f}")
    Console().print(table)


def _private(rounds: int, data: list[str], runtime: str, *options: str) -> Config:
    return compose(
        [
            *("strategy=dome", "secagg=semi_honest", "device=cpu", f"runtime={runtime}", *data),
            *("clients.total=1200", "clients.per_round=1200", f"rounds={rounds}", *options),
            *(f"evaluate_every={rounds}", f"checkpoint_every={rounds}"),
        ]
    )


class _Clock:
    """Watches a run, and notes clock and CPU after each round."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, float, int]] = []

    def began(self, config: Config, done: int, guarantee: str) -> None: ...

    def notes(self, sentence: str) -> None: ...

    def round_done(self, row: dict[str, Any]) -> None:
        self.readings.append((time.monotonic(), time.process_time(), row["clients"]))

    def ended(self, summary: dict[str, Any], report: Path) -> None: ...


def _timed(settings: Config) -> Speed:
    """Return the seconds of all rounds but the first two, and the last, which is evaluated."""
    clock = _Clock()
    with (
        tempfile.TemporaryDirectory() as folder,
        simulated_devices(settings),
        fitting_threads(Workload(settings).parameters),
        kept_memory(),
    ):
        cohort = isinstance(settings.runtime, CohortRuntimeConfig)
        grid = BatchedGrid(app, settings) if cohort else LocalGrid(app, settings.clients.total)
        Rounds(settings, Path(folder) / "run", clock).run(grid)
    (start, cpu, _), *counted, (stop, cpu_then, last) = clock.readings[WARM_UP - 1 : -1]
    updates = sum(clients for *_, clients in counted) + last
    return Speed(updates / (stop - start), 1e3 * (cpu_then - cpu) / updates)


def _show(title: str, speeds: dict[str, Speed], peer: str) -> None:
    table = Table(title=title)
    headings = ("updates per second", "CPU ms per update", f"ratio to {peer}", "ratio by CPU")
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right")
    other = speeds[peer]
    for name, speed in speeds.items():
        by_cpu = "" if not (speed.cpu and other.cpu) else f"{other.cpu / speed.cpu:.1f}"
        table.add_row(
            name,
            f"{speed.per_second:,.0f}",
            "" if speed.cpu is None else f"{speed.cpu:.2f}",
            f"{speed.per_second / other.per_second:.1f}",
            by_cpu,
        )
    Console().print(table)


if __name__ == "__main__":
    main()
