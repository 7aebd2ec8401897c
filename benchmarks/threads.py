"""A simulated client's update with one torch thread and with two, by model: where `LARGE_MODEL` of runtime/threads.py
comes from.

    python benchmarks/threads.py [--rounds 8]

Clients take turns with one and with two threads in the same run; each number is the fastest update. Wants idle cores:
threads that wait for a core make two threads look worse than they are.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Some files of this folder have the names of packages, so the folder above is searched first.
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from flwr.app import Message
from rich.console import Console
from rich.table import Table

from fedsketch.client.app import app
from fedsketch.conf import Config, compose
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import is_train
from fedsketch.server.rounds import Rounds

CLIENTS = 11  # odd, so that a client's turn changes from round to round
EXAMPLES_PER_CLIENT = 24
MODELS = {
    **{f"mlp {width}": ["model=mlp", f"model.width={width}"] for width in (32, 512, 1024, 2048)},
    **{"mlp 4096": ["model=mlp", "model.width=4096"], "cnn": ["model=cnn"]},
    **{"resnet": ["model=resnet"]},
}


class TimedGrid(LocalGrid):
    """Trains with one and two threads by turns."""

    def __init__(self) -> None:
        super().__init__(app, CLIENTS)
        self.seconds: dict[int, list[float]] = {1: [], 2: []}

    def _answer(self, message: Message) -> Message:
        if not is_train(message):
            return super()._answer(message)
        threads = 1 if len(self.seconds[1]) <= len(self.seconds[2]) else 2
        torch.set_num_threads(threads)
        start = time.perf_counter()
        reply = super()._answer(message)
        self.seconds[threads].append(time.perf_counter() - start)
        return reply


class Silent:
    """An observer who says nothing."""

    def began(self, config: Config, done: int, guarantee: str) -> None: ...

    def notes(self, sentence: str) -> None: ...

    def round_done(self, row: dict[str, Any]) -> None: ...

    def ended(self, summary: dict[str, Any], report: Path) -> None: ...


def measured(model: list[str], rounds: int) -> tuple[int, float, float]:
    """Return the number of parameters, and the seconds of an update with one thread and with two."""
    overrides = [
        *("strategy=dp_fedavg", "secagg=none", "privacy.against=model", "device=cpu"),
        *("data=synthetic", "data.shape=[1,28,28]", "data.test_examples=10"),
        f"data.examples={CLIENTS * EXAMPLES_PER_CLIENT}",
        *(f"clients.total={CLIENTS}", f"clients.per_round={CLIENTS}", f"rounds={rounds}"),
        *(f"checkpoint_every={rounds}", f"evaluate_every={rounds}", *model),
    ]
    config, grid = compose(overrides), TimedGrid()
    with tempfile.TemporaryDirectory() as folder, simulated_devices(config):
        run = Rounds(config, Path(folder), Silent())
        run.run(grid)
    return run.model.size, min(grid.seconds[1]), min(grid.seconds[2])


def main() -> None:
    parser = argparse.ArgumentParser(description="One torch thread or two, by model.")
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    table = Table("model", "parameters", "one thread, ms", "two threads, ms", "two over one")
    for name, model in MODELS.items():
        size, one, two = measured(model, rounds)
        table.add_row(name, f"{size:,}", f"{one * 1e3:.1f}", f"{two * 1e3:.1f}", f"{two / one:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
