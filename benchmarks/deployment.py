"""What a round costs on a real SuperLink with three SuperNodes: training alone and under secure aggregation, stock
polling and ours.

    python benchmarks/deployment.py [--rounds 4] [--data digits] [--settings stock ours] [--reply-seconds 0]

Every node starts a Python process per message. "Stock" looks for replies every 3 s, as Flower's grid does, starts tasks
every 1 s, as its SuperExec does, and takes five round trips per round of secure aggregation; "ours" is what
runtime=processes does, with secagg.merged=true. Both run the same app with TLS, node authentication and device ledgers.
The first round is not timed, because it also exchanges the first keys. Training on digits imports scikit-learn, which a
device with its own data does not need; with `--data synthetic` nothing but torch is imported. `--reply-seconds` sets
that key in the policies of all nodes. On a machine that others use, trust the CPU seconds more than the clock.
"""

import argparse
import contextlib
import os
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fedsketch.runtime.processes
import fedsketch.runtime.submission

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console
from rich.table import Table

from fedsketch.client.guard.guard import POLICY
from fedsketch.client.guard.policy import Policy
from fedsketch.conf import Config, compose
from fedsketch.runtime.children import descendants
from fedsketch.runtime.processes import Network
from fedsketch.runtime.submission import follow, submit

NODES = 3
COMMON = [
    f"clients.total={NODES}",
    f"clients.per_round={NODES}",
    "device=cpu",
    "strategy=dp_fedavg",
    "runtime=processes",
    "privacy.epsilon=null",
    "privacy.noise_multiplier=1.0",
    "secagg.stage_timeout=600",
]
PLAIN = [*COMMON[:-1], "secagg=none"]
STOCK_POLLS = {"secagg/wrapped_grid.py": r"(?<=\nPOLL_INTERVAL = )[0-9.]+"}


class Rounds:
    """An observer that keeps the seconds of each round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def began(self, config: Config, done: int, guarantee: str) -> None:
        """Do nothing."""

    def notes(self, sentence: str) -> None: ...

    def round_done(self, row: dict[str, Any]) -> None:
        self.seconds.append(row["seconds"]["round"])

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        """Do nothing."""


def cost_of_a_round(network: Network, overrides: list[str], name: str) -> tuple[float, float]:
    """Return median seconds of a round, without the first; and CPU seconds of a node per round, the first included."""
    heard, before = Rounds(), nodes_cpu(network)
    run = submit(network.connection, overrides, name, send=False).run
    follow(network.connection, run, compose(overrides), network.folder, heard)
    cpu = (nodes_cpu(network) - before) / NODES / len(heard.seconds)
    return statistics.median(heard.seconds[1:]), cpu


def nodes_cpu(network: Network) -> float:
    """Return CPU seconds that the nodes and everything they started have used so far (Linux)."""
    ticks = 0
    for pid in descendants(network.pid(client) for client in range(NODES)):
        with contextlib.suppress(FileNotFoundError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # own and ended children's, user and system
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def stock() -> Iterator[None]:
    """Yield the same app and nodes with Flower's own intervals."""
    ours, polling = fedsketch.runtime.submission.APP, fedsketch.runtime.processes.polling
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "app"
        kept = shutil.ignore_patterns(
            ".*", "outputs", "multirun", "certs", "tests", "docs", "*.egg-info"
        )
        shutil.copytree(ours, app, ignore=kept)
        # By pyproject.toml, and Flower wants them to be there then.
        for excluded in (
            "docs",
            "tests",
        ):
            (app / excluded).mkdir()
            (app / excluded / "empty.py").touch()
        (app / ".gitignore").write_text("__pycache__/\n")
        for name, pattern in STOCK_POLLS.items():
            text, changed = re.subn(pattern, "3.0", (app / name).read_text())
            assert changed == 1, name
            (app / name).write_text(text)
        fedsketch.runtime.submission.APP, fedsketch.runtime.processes.polling = (
            app,
            lambda nodes: {},
        )
        try:
            yield
        finally:
            fedsketch.runtime.submission.APP, fedsketch.runtime.processes.polling = ours, polling


def pad_replies(network: Network, seconds: float) -> None:
    """Set the policies of all nodes to replies at multiples of this time."""
    for client in range(NODES):
        file = network.private / "nodes" / str(client) / "device" / POLICY
        file.write_text(replace(Policy.load(file), reply_seconds=seconds).to_toml())


def measure(
    asked: list[str], padding: float, *, merged: bool
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return costs of a plain and of a secure round on one set of nodes."""
    with tempfile.TemporaryDirectory() as folder:
        plain = [*PLAIN, *asked]
        with Network(compose(plain), Path(folder) / "run").running() as network:
            pad_replies(network, padding)
            alone = cost_of_a_round(network, plain, "plain")
            secure = [*COMMON, *asked, f"secagg.merged={str(merged).lower()}", "secagg.colluders=0"]
            return alone, cost_of_a_round(network, secure, "secure")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--data", choices=["digits", "synthetic"], default="digits")
    parser.add_argument(
        "--settings", nargs="+", choices=["stock", "ours"], default=["stock", "ours"]
    )
    parser.add_argument("--reply-seconds", type=float, default=0.0)
    arguments = parser.parse_args()
    rounds, data = arguments.rounds, arguments.data
    asked = [f"rounds={rounds}", f"data={data}"]
    table = Table(
        title=f"{NODES} nodes, {data}, median of {rounds - 1} rounds, {os.cpu_count()} cores"
    )
    for column in (
        "settings",
        "round trips",
        "plain round",
        "secure round",
        "ratio",
        "CPU of a node",
    ):
        table.add_column(column, justify="left" if column == "settings" else "right")
    for name in arguments.settings:
        with stock() if name == "stock" else contextlib.nullcontext():
            costs = measure(asked, arguments.reply_seconds, merged=name == "ours")
        (alone, alone_cpu), (secure, secure_cpu) = costs
        round_trips = 3 if name == "ours" else 5
        cells = (f"{alone:.1f} s", f"{secure:.1f} s", f"{secure / alone:.2f}")
        table.add_row(name, str(round_trips), *cells, f"{alone_cpu:.1f} and {secure_cpu:.1f} s")
    console = Console()
    console.print(table)
    console.print(f"Load average of the machine meanwhile: {os.getloadavg()[2]:.1f}")


if __name__ == "__main__":
    main()
