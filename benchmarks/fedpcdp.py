"""FedPCDP beside FedPDP and FedAvg with DP-SGD: Table 2 of the preprint, on Fashion-MNIST.

    python benchmarks/fedpcdp.py --data-root DIR [--seeds 3] [--noise 4 10] [--rows FedPCDP] [--record runs.jsonl]

The preset `experiment=paper_fedpcdp`: 10 clients of 5,000 images of one class, 8 in a round, 80 rounds, k = m =
100, the cnn of 26,010 parameters. Without masks, but with their integers: the sum is the same bit by bit, so the models
are. Noise follows from the seed here, so that the table can be reproduced. Runs that the record already holds are not
repeated.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

# Some files of this folder have the names of packages, so the folder above is searched first.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parent))

import torch
from rich.console import Console
from rich.table import Table
from run_store import mean_and_error, play

SETTINGS = [
    "experiment=paper_fedpcdp",
    *("secagg=none", "secagg.noise=skellam", "privacy.randomness=seeded"),
    *("evaluate_every=20", "checkpoint_every=80", "device=cpu", "runtime=cohort"),
]
ROWS = {"FedPCDP": "before", "FedPDP": "after", "FedAvg, DP-SGD": "none"}
PAPER = {  # Table 2, by sigma
    "FedPCDP": {4: 71.1, 10: 69.1},
    "FedPDP": {4: 70.9, 10: 67.3},
    "FedAvg, DP-SGD": {4: 72.3, 10: 43.2},
}


def record(overrides: list[str]) -> dict[str, Any]:
    """Return the result of a run, as it is recorded."""
    played = play(overrides)
    accuracies = [row["accuracy"] for row in played.rows if row["accuracy"] is not None]
    return {
        "accuracy": 100 * played.summary["accuracy"],
        "on the way": [round(100 * value, 2) for value in accuracies],
        "epsilon": played.summary["epsilon"]["server"],
        "sent": played.strategy.noise.dim,
        "seconds": round(played.summary["seconds"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True, help="the folder with FashionMNIST in it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--noise", nargs="+", type=int, default=[4, 10], help="sigma of a step")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--record", type=Path, default=Path("fedpcdp.jsonl"), help="JSON lines")
    parser.add_argument("--overrides", nargs="*", default=[], help="for every run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=120)
    known: dict[str, dict[str, Any]] = {}
    if options.record.exists():
        lines = map(json.loads, options.record.read_text().splitlines())
        known = {line["key"]: line for line in lines}
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        for noise in options.noise:
            for name in options.rows:
                asked = [f"strategy.projection={ROWS[name]}", f"privacy.noise_multiplier={noise}"]
                asked += [f"seed={seed}", *options.overrides]
                key = " ".join(asked)
                if key not in known:
                    known[key] = {
                        "key": key,
                        **record([*SETTINGS, *asked, f"data.root={options.data_root}"]),
                    }
                    with options.record.open("a") as lines_of_runs:
                        lines_of_runs.write(json.dumps(known[key]) + "\n")
                runs.setdefault((name, noise), []).append(known[key])
                console.print(f"{name}, sigma {noise}, seed {seed}: {known[key]}")
    console.print(_table(runs))


def _table(runs: dict[tuple[str, int], list[dict[str, Any]]]) -> Table:
    table = Table(title="Accuracy in %: mean and standard error over the seeds")
    for column in ("", "sigma", "epsilon", "accuracy", "each seed", "the paper", "numbers sent"):
        table.add_column(column, justify="right" if column else "left")
    for (name, noise), played in runs.items():
        accuracies = [run["accuracy"] for run in played]
        mean, error = mean_and_error(accuracies)
        table.add_row(
            name,
            str(noise),
            f"{played[0]['epsilon']:.3f}",
            f"{mean:.1f} +- {error:.1f}",
            " ".join(f"{value:.1f}" for value in accuracies),
            str(PAPER[name].get(noise, "")),
            f"{played[0]['sent']:,}",
        )
    return table


if __name__ == "__main__":
    main()
