"""What noise that cancels over rounds is worth: SGMF beside L2-CSGM, at the same epsilon, over four passes with every
client once in each.

    python benchmarks/sgmf.py                                        # errors of the factorisations only, a few seconds
    python benchmarks/sgmf.py --data-root DIR [--seeds 3] [--records FILE] [--epsilons 1 2 4] [--rows csgm sgmf ...]

Accuracy: logistic regression (d = 7,850), 1,000 clients of 60 images, 50 in a round, 80 rounds, one gradient of each
client in a pass, against those who see the models. Learning rates were chosen for each row and epsilon, with seed 0,
on test accuracy (docs/strategies/sgmf.md has the grid). Noise follows from the seed, so that the table can be
reproduced. With --records FILE runs that are in it already are not repeated.
"""

import argparse
import sys
from pathlib import Path

# Some files of this folder have the names of packages, so the folder above is searched first.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parent))

import numpy as np
from rich.console import Console
from rich.table import Table
from run_store import Runs, mean_and_error

from fedsketch.privacy.accounting.factorisation import (
    FactorisationKind,
    Matrix,
    bandwidth,
    column_norm,
    error,
    factorise,
    separated_norm,
    workload,
)

PASS, PASSES = 20, 4
ROUNDS = PASS * PASSES
SETTINGS = [
    *("data=fashion_mnist", "model=logistic", "device=cpu", "privacy.randomness=seeded"),
    *("clients.total=1000", f"clients.per_round={1000 // PASS}", f"rounds={ROUNDS}"),
    "runtime=cohort",
    *(f"evaluate_every={ROUNDS}", f"checkpoint_every={ROUNDS}"),
]
SHUFFLED = "clients.sampling=passes"
ONE_BAND = ["strategy.restarts=false", "strategy.factorisation=banded", "clients.sampling=cycle"]
ROWS = {
    "csgm": ["strategy=csgm", "strategy.rate=1", SHUFFLED],
    "sgmf": ["strategy=sgmf", SHUFFLED],
    "sgmf, no restarts": ["strategy=sgmf", *ONE_BAND],
    "csgm, rate 0.1": ["strategy=csgm", "strategy.rate=0.1", SHUFFLED],
    "sgmf, rate 0.1": ["strategy=sgmf", "strategy.rate=0.1", SHUFFLED],
    "csgm, Poisson": ["strategy=csgm", "strategy.rate=1", "clients.sampling=poisson"],
}
RATES = {
    "csgm": {1.0: 0.02, 2.0: 0.03, 4.0: 0.05},
    "sgmf": {1.0: 0.03, 2.0: 0.05, 4.0: 0.1},
    "csgm, Poisson": {1.0: 0.05, 2.0: 0.1, 4.0: 0.1},
}


def error_table(console: Console) -> None:
    """Mean squared error of the models of a run, over that of independent noise of the same price."""
    table = Table(title=f"Variance of the noise in {ROUNDS} models, independent noise = 1")
    for column in ("", "rows of noise kept", "without momentum", "momentum 0.9"):
        table.add_column(column, justify="right" if column else "left")
    kinds: tuple[FactorisationKind, ...] = ("identity", "tree", "square_root", "optimal")
    for kind in kinds:
        both = [(m, factorise(kind, PASS, m, passes=PASSES)) for m in (0.0, 0.9)]
        losses = [
            _ratio(workload(PASS, m, PASSES), strategy, column_norm(strategy))
            for m, strategy in both
        ]
        table.add_row(kind, str(bandwidth(both[0][1]) - 1), *losses)
    for band in (5, PASS):
        both = [(m, factorise("banded", ROUNDS, m, band)) for m in (0.0, 0.9)]
        losses = [
            _ratio(workload(ROUNDS, m), strategy, separated_norm(strategy, PASS) / PASSES**0.5)
            for m, strategy in both
        ]
        table.add_row(f"banded, {band} diagonals, no restarts", str(band - 1), *losses)
    console.print(table)


def _ratio(target: Matrix, strategy: Matrix, sensitivity: float) -> str:
    loss = error(target, strategy) * sensitivity**2
    return f"{loss / error(target, np.eye(len(strategy))):.3f}"


def accuracy_table(console: Console, options: argparse.Namespace) -> None:
    runs = Runs(options.records)
    table = Table(title=f"Accuracy after {PASSES} passes, {options.seeds} seeds")
    for column in ("", *(f"epsilon {epsilon:g}" for epsilon in options.epsilons)):
        table.add_column(column, justify="right" if column else "left")
    for name in options.rows:
        cells = []
        for epsilon in options.epsilons:
            rate = RATES.get(name, RATES[name.split(",")[0]])[epsilon]
            given = [f"privacy.epsilon={epsilon:g}", f"strategy.server.lr={rate:g}"]
            root = f"data.root={options.data_root}"
            found = runs.accuracies(
                [*SETTINGS, *ROWS[name], *given, root, *options.overrides], options.seeds
            )
            mean, spread = mean_and_error(found)
            each = ", ".join(f"{value:.1f}" for value in found)
            cells.append(f"{mean:.1f} ± {spread:.1f} ({each})")
            console.print(f"{name}, epsilon {epsilon:g}: {cells[-1]}")
        table.add_row(name, *cells)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", help="the folder with FashionMNIST in it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--records",
        type=Path,
        help="file of JSON lines: finished runs are read from it, new ones are added",
    )
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 2.0, 4.0])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--overrides", nargs="+", default=[], help="for all rows")
    options = parser.parse_args()
    console = Console(width=140)
    if options.data_root:
        accuracy_table(console, options)
    else:
        error_table(console)


if __name__ == "__main__":
    main()
