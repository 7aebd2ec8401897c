"""Flower's own strategies on the noisy mean (`strategy=flower`), beside DP-FedAvg with the optimisers of torch.

    python benchmarks/flower_strategies.py [--seeds 10] [--rates] [--record runs.jsonl] [--overrides ...]

The default run (digits, 60 clients of about 24 images as units, 40 rounds) at epsilon 2 and 8 against the server. All
rows have the same local work, an epoch in batches of 8 with rate 0.1, and a server rate of their own. With --rates the
command shows how they were chosen: rates a factor of 2 apart, on 200 validation examples that no client has then, with
three seeds that no table uses. Noise follows from the seed here, so that the table can be reproduced.
"""

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

# Some files of this folder have the names of packages, so the folder above is searched first.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parent))

from rich.console import Console
from rich.table import Table
from run_store import Runs, mean_and_error

EPSILONS = (2, 8)
COMMON = (
    *("runtime=cohort", "runtime.workers=1", "device=cpu", "privacy.randomness=seeded"),
    *("evaluate_every=40", "checkpoint_every=40"),
    *("strategy.local.steps=1", "strategy.local.epochs=1"),
    *("strategy.local.batch=8", "strategy.local.lr=0.1"),
)
TUNING_SEEDS = (100, 101, 102)
AROUND = (0.25, 0.5, 1, 2, 4)


@dataclass(frozen=True)
class Row:
    """A server's step: its overrides, the key of its rate, and the rate at each of EPSILONS. FedAvg has no rate."""

    overrides: tuple[str, ...]
    key: str = ""
    rates: tuple[float, float] = (1.0, 1.0)

    def with_rate(self, epsilon: int, factor: float = 1.0) -> list[str]:
        rate = self.rates[EPSILONS.index(epsilon)] * factor
        own = (f"{self.key}={rate:g}",) if self.key else ()
        return [*COMMON, f"privacy.epsilon={epsilon}", *self.overrides, *own]


def _flower(use: str, option: str, rates: tuple[float, float], *more: str) -> Row:
    chosen = ("strategy=flower", f"strategy.use={use}", *more)
    return Row(chosen, f"strategy.options.{option}", rates)


def _torch(optimizer: str, rates: tuple[float, float], *more: str) -> Row:
    chosen = ("strategy=dp_fedavg", f"strategy.server.optimizer={optimizer}", *more)
    return Row(chosen, "strategy.server.lr", rates)


ROWS = {
    "FedAvg": Row(("strategy=flower", "strategy.use=FedAvg")),
    "FedAvgM": _flower(
        "FedAvgM", "server_learning_rate", (0.125, 0.5), "strategy.options.server_momentum=0.9"
    ),
    "FedAdagrad": _flower("FedAdagrad", "eta", (0.2, 0.2)),
    "FedAdam": _flower("FedAdam", "eta", (0.1, 0.05)),
    "FedYogi": _flower("FedYogi", "eta", (0.05, 0.025)),
    "dp_fedavg, sgd": _torch("sgd", (1.0, 2.0)),
    "dp_fedavg, sgd with momentum": _torch("sgd", (0.1, 0.4), "strategy.server.momentum=0.9"),
    "dp_fedavg, adam": _torch("adam", (0.08, 0.08)),
}


def show_rates(runs: Runs, console: Console, overrides: list[str]) -> None:
    """Print the accuracy on validation examples at each rate; the chosen one is in the middle."""
    for name, row in ROWS.items():
        for epsilon in EPSILONS if row.key else ():
            tried = {}
            for factor in AROUND:
                chosen = [*row.with_rate(epsilon, factor), "validation.examples=200", *overrides]
                played = [runs.play([*chosen, f"seed={seed}"]) for seed in TUNING_SEEDS]
                rate = row.rates[EPSILONS.index(epsilon)] * factor
                tried[rate] = statistics.mean(one["validation"] for one in played)
            shown = ", ".join(f"{rate:g}: {accuracy:.1f}" for rate, accuracy in tried.items())
            console.print(f"{name}, epsilon {epsilon}: {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rates", action="store_true", help="show how the rates were chosen")
    parser.add_argument(
        "--record", type=Path, help="a file of JSON lines: runs in it are not repeated"
    )
    parser.add_argument("--overrides", nargs="*", default=[], help="for all runs")
    options = parser.parse_args()
    runs, console = Runs(options.record), Console(width=120)
    if options.rates:
        show_rates(runs, console, options.overrides)
        return
    table = Table(title=f"Test accuracy in %, mean and standard error of {options.seeds} seeds")
    table.add_column("the server's step")
    for epsilon in EPSILONS:
        table.add_column(f"rate, epsilon {epsilon}", justify="right")
        table.add_column("accuracy", justify="right")
    for name, row in ROWS.items():
        cells = [name]
        for epsilon, rate in zip(EPSILONS, row.rates, strict=True):
            values = runs.accuracies([*row.with_rate(epsilon), *options.overrides], options.seeds)
            mean, error = mean_and_error(values)
            cells += [f"{rate:g}" if row.key else "none", f"{mean:.1f} ± {error:.1f}"]
        console.print(" | ".join(cells))
        table.add_row(*cells)
    console.print(table)


if __name__ == "__main__":
    main()
