"""An adaptive clip compared with fixed ones: does it find the best of them, wherever it starts?

    python benchmarks/adaptive_clip.py --data-root DIR [--seeds 3] [--record runs.jsonl] [--overrides ...]

DP-FedAvg on Fashion-MNIST: mlp of width 32, 100 clients of 600 images as units, all in every round, 50 rounds, epsilon
4 against those who see the models. Fixed clips on a grid around the best, and the adaptive one (median of the norms)
from a start that is 10 times too large or too small. All rows have the same settings except for the clip. Noise follows
from the seed here, so that the table can be reproduced.
"""

import argparse
import sys
from pathlib import Path

# Some files of this folder have the names of packages, so the folder above is searched first.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parent))

from rich.console import Console
from rich.table import Table
from run_store import Runs, mean_and_error

ROUNDS = 50
COMMON = [
    *("experiment=clients_100", "strategy=dp_fedavg", f"rounds={ROUNDS}", "device=cpu"),
    *("strategy.server.lr=0.01", "secagg=none", "privacy.against=model", "privacy.epsilon=4"),
    *("privacy.randomness=seeded", f"evaluate_every={ROUNDS}", f"checkpoint_every={ROUNDS}"),
    "runtime=cohort",
]
FIXED = (0.025, 0.25, 0.5, 0.8, 2.5)
STARTS = (0.025, 0.25, 2.5)


def rows() -> dict[str, list[str]]:
    fixed = {f"{clip:g}": [f"privacy.clip={clip}"] for clip in FIXED}
    adaptive = {
        f"adaptive from {start:g}": ["privacy.clip=adaptive", f"privacy.adaptive.start={start}"]
        for start in STARTS
    }
    return {**fixed, **adaptive}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True, help="the folder with FashionMNIST in it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--record", type=Path, help="a file of JSON lines: runs in it are not repeated"
    )
    parser.add_argument("--overrides", nargs="*", default=[], help="for all runs")
    options = parser.parse_args()
    runs, console = Runs(options.record), Console(width=120)
    table = Table(title=f"Accuracy after {ROUNDS} rounds, epsilon 4, {options.seeds} seeds")
    for column in ("clip", "accuracy", "each seed", "epsilon", "last clip"):
        table.add_column(column, justify="left" if column == "clip" else "right")
    for name, settings in rows().items():
        chosen = [*COMMON, f"data.root={options.data_root}", *settings, *options.overrides]
        values = runs.accuracies(chosen, options.seeds)
        played = [runs.play([*chosen, f"seed={seed}"]) for seed in range(options.seeds)]
        mean, error = mean_and_error(values)
        console.print(f"{name}: {mean:.1f} % ({sum(one['seconds'] for one in played):.0f} s)")
        last = [one["clip"] for one in played if one["clip"] is not None]
        table.add_row(
            name,
            f"{mean:.1f} ± {error:.1f} %",
            " ".join(f"{value:.1f}" for value in values),
            f"{max(one['epsilon']['model'] for one in played):.3f}",
            " ".join(f"{clip:.3g}" for clip in last),
        )
    console.print(table)


if __name__ == "__main__":
    main()
