"""The no-trust record: examples as units, against a server that may lie and works with a tenth of the clients.

    python benchmarks/record.py --data-root DIR [--epsilons 0.5 1 2 3] [--seeds 5] [--presets NAME ...]
        [--records FILE] [--local]

Plays conf/experiment/record_*.yaml and prints the test accuracy after the last round beside what others published
with a trusted curator. `runtime=cohort` draws the same noise for the same integers as devices under masks; --local
plays devices with masks. With --records FILE every run is written there as a line of JSON, and runs that are there
already are not played again. Clips and rates were chosen on held-out training examples (benchmarks/record_tuning.py).
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(1, str(Path(__file__).parent))

from rich.console import Console
from rich.table import Table
from run_store import Runs, mean_and_error

PRESETS = (
    "record_fashion_mnist",
    "record_fashion_mnist_no_public",
    "record_mnist",
    "record_mnist_no_public",
)
# Tramer and Boneh 2021, "Differentially Private Learning Needs Better Features (or Much More Data)", with a curator
# who sees all data.
PUBLISHED = {"fashion_mnist": "epsilon 3: 89.7 (scattering, linear), 86.0 (CNN)", "mnist": ""}


def overrides(preset: str, epsilon: float, root: str, *others: str) -> list[str]:
    return [
        *(f"experiment={preset}", f"data.root={root}", f"privacy.epsilon={epsilon:g}"),
        *("privacy.randomness=seeded", "evaluate_every=100", "checkpoint_every=100", *others),
    ]


def results(asked: argparse.Namespace, runs: Runs) -> None:
    """Mean and standard error over the seeds."""
    runtime = "local" if asked.local else "cohort"
    table = Table(title=f"% correct on the test set, {asked.seeds} seeds, runtime={runtime}")
    for heading in ("preset", *(f"epsilon {epsilon:g}" for epsilon in asked.epsilons)):
        table.add_column(heading, justify="left" if heading == "preset" else "right")
    table.add_column("published, with a trusted curator")
    for preset in asked.presets:
        cells = []
        for epsilon in asked.epsilons:
            chosen = overrides(preset, epsilon, asked.data_root, f"runtime={runtime}")
            mean, error = mean_and_error(runs.accuracies(chosen, asked.seeds))
            cells.append(f"{mean:.2f} ± {error:.2f}")
            print(f"{preset}, epsilon {epsilon:g}: {cells[-1]}", flush=True)
        table.add_row(preset, *cells, PUBLISHED[preset.removesuffix("_no_public")[7:]])
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True, help="where the data sets lie")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 2.0, 3.0])
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--records", type=Path, help="lines of JSON, a run each")
    parser.add_argument("--local", action="store_true", help="devices with masks; much slower")
    asked = parser.parse_args()
    results(asked, Runs(asked.records))


if __name__ == "__main__":
    main()
