"""What sketching costs Fed-SGM in accuracy: no sketch, d/10 and d/100 numbers, a fresh sketch in every round or one for
all.

    python benchmarks/fed_sgm.py --data-root DIR [--seeds 3] [--rows "d/100"]

Fashion-MNIST, mlp of width 32 (d = 25,450), 100 clients, Poisson 0.1, 100 rounds of 10 local steps, epsilon 4 against
those who see the models, whoever knows the sketch (r_public). Without masks, but with their integers and integer
noise: the sum is the same bit by bit, so the models are. All rows have the same settings beside those named; the rate
of each optimiser was chosen once, with seed 0 and without a sketch. Noise follows from the seed here, so that the
table can be reproduced.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

# Some files of this folder have the names of packages, so the folder above is searched first.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parent))

import torch
from rich.console import Console
from rich.table import Table
from run_store import play

from fedsketch.sketching.gaussian import GaussianSketch
from fedsketch.strategies import fed_sgm

# Enough for epsilon 4 (a run prints what it spent). The budget still holds: a run that would exceed it stops, and is
# reported. (Left to the budget, noise is calibrated for every size of a Poisson cohort, which takes longer than the
# training.)
NOISE = "privacy.noise_multiplier=1.49"
SETTINGS = [
    *("experiment=clients_100", "strategy=fed_sgm", "rounds=100", "clients.per_round=10"),
    *("clients.sampling=poisson", "privacy.epsilon=4", "privacy.clip=0.3", "privacy.against=model"),
    "strategy.server.lr=0.3",
    *("secagg=none", "secagg.noise=skellam", NOISE, "privacy.randomness=seeded"),
    *("evaluate_every=100", "checkpoint_every=100", "device=cpu", "runtime=cohort"),
]
AMSGRAD = ["strategy.server.optimizer=amsgrad", "strategy.server.lr=0.01"]
ROWS = {
    "no sketch": ["strategy.sketch=identity"],
    "d/100": ["strategy.sketch_dim=0.01"],
    "d/100, one sketch for all rounds": ["strategy.sketch_dim=0.01", "strategy.seed_per=run"],
    "d/10": ["strategy.sketch_dim=0.1"],
    "d/100, Hadamard": ["strategy.sketch_dim=0.01", "strategy.sketch=hadamard"],
    "no sketch, AMSGrad": ["strategy.sketch=identity", *AMSGRAD],
    "d/100, AMSGrad": ["strategy.sketch_dim=0.01", *AMSGRAD],
}


class SharedSketch(GaussianSketch):
    """All devices and the server are one process here: the tiles of a round are made once. The same bits, in more
    memory."""

    def __init__(self, b: int, d: int, seed: int) -> None:
        super().__init__(b, d, seed)
        self._made: dict[tuple[int, int], torch.Tensor] = {}

    def _tile(self, place: tuple[int, int]) -> torch.Tensor:
        if place not in self._made:
            self._made[place] = super()._tile(place)
        return self._made[place]


def summary_of(overrides: list[str]) -> dict[str, Any]:
    """Return the summary of a run, and how many numbers a client sent in a round."""
    played = play(overrides)
    return {**played.summary, "sent": played.strategy.noise.dim}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True, help="the folder with FashionMNIST in it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--rows", nargs="+", choices=list(ROWS), default=list(ROWS), help="the others are left out"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    fed_sgm._SKETCHES["gaussian"] = SharedSketch
    console = Console(width=120)
    table = Table(title=f"Accuracy after 100 rounds, epsilon 4, {options.seeds} seeds")
    for column in ("", "accuracy", "each seed", "difference", "epsilon", "numbers sent"):
        table.add_column(column, justify="right" if column else "left")
    baseline: float | None = None
    for name in dict.fromkeys(["no sketch", *options.rows]):
        runs = []
        for seed in range(options.seeds):
            start = time.monotonic()
            given = [f"data.root={options.data_root}", f"seed={seed}"]
            runs.append(summary_of([*SETTINGS, *ROWS[name], *given]))
            took = time.monotonic() - start
            console.print(f"{name}, seed {seed}: {runs[-1]['accuracy']:.4f} ({took:.0f} s)")
        accuracies = [100 * run["accuracy"] for run in runs]
        mean = sum(accuracies) / len(accuracies)
        baseline = mean if baseline is None else baseline
        table.add_row(
            name,
            f"{mean:.1f} %",
            " ".join(f"{value:.1f}" for value in accuracies),
            f"{mean - baseline:+.1f}",
            f"{max(run['epsilon']['model'] for run in runs):.3f}",
            f"{runs[0]['sent']:,}",
        )
        assert all(run["stopped"] is None for run in runs), "the budget ended a run early"
    console.print(table)


if __name__ == "__main__":
    main()
