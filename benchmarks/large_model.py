"""A transformer of a million parameters: bytes on the wire and accuracy of DOME and of DP-FedAvg, in one run.

    python benchmarks/large_model.py --data-root DIR [--seeds 3] [--workers 2] [--rows NAME ...]
        [--records FILE] [--rates RATE ...] [--overrides strategy.sketch_dim=20000 ...]

Fashion-MNIST, 100 clients of 550 images as units, all in every round, 15 rounds, epsilon 8 at delta 1e-5 against a
server that lies and works with a tenth of the clients. `runtime=cohort` plays the clients; bytes are those that
devices send and get under `secagg=pairwise`, with keys, shares, signatures and headers. Noise follows from the seed,
so that a table can be made again.

All runs hold out 5,000 validation images that no client has. With --rates RATE ... each learning rate is tried
instead, with seed 0, and the table has the accuracy on these images: so the rates of both presets were chosen
(docs/strategies/dome_large.md).

With --records FILE every run is written there as a line of JSON, and runs that are there already are not played
again.
"""

import argparse
import sys
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(1, str(Path(__file__).parent))

from rich.console import Console
from rich.table import Table
from run_store import Runs, mean_and_error

FULL, DOME = "dp_fedavg", "dome"
OWN = ["experiment=transformer_fashion_mnist"]
LAYERS = ["strategy.sketch=layerwise"]
PUBLIC = ["strategy.directions=public", "data.public=1000", "strategy.refresh=1000"]
ROWS = {
    FULL: ["experiment=transformer_full_fashion_mnist"],
    DOME: OWN,
    "layerwise": [*OWN, *LAYERS],
    "public": [*OWN, *LAYERS, *PUBLIC],
}
COMMON = ["runtime=cohort", "privacy.randomness=seeded", "evaluate_every=1000"]
COMMON += ["checkpoint_every=1000", "validation.examples=5000"]
COLUMNS = ("", "numbers sent", "accuracy, %", "each", "up per round", "down per round")


def _tried(runs: Runs, names: list[str], rates: list[float], more: list[str]) -> None:
    """The accuracy on validation images for every rate."""
    table = Table("", *(f"{rate:g}" for rate in rates))
    for name in names:
        own = [*ROWS[name], *COMMON, *more, "seed=0"]
        played = [runs.play([*own, f"strategy.server.lr={rate}"]) for rate in rates]
        table.add_row(name, *(f"{row['validation']:.1f}" for row in played))
    Console(width=150).print(table)


def _compared(runs: Runs, names: list[str], seeds: int, workers: int, more: list[str]) -> None:
    """Accuracy and bytes, and how many times more the first row's are."""
    table = Table(*COLUMNS, "first / this: up", "down", "seconds per round", "of them server")
    first: list[dict[str, Any]] = []
    plans = {
        name: [[*ROWS[name], *COMMON, *more, f"seed={seed}"] for seed in range(seeds)]
        for name in names
    }
    for _ in runs.play_all([run for plan in plans.values() for run in plan], workers):
        pass
    for name in names:
        rows = [runs.play(run) for run in plans[name]]
        first = first or rows
        values = [float(row["accuracy"]) for row in rows]
        average, error = mean_and_error(values)
        up, down = (_per_round(rows, key) for key in ("uplink_bytes", "downlink_bytes"))
        table.add_row(
            name,
            f"{rows[0]['numbers']:,} of {rows[0]['parameters']:,}",
            f"{average:.1f} ± {error:.1f}",
            ", ".join(f"{value:.1f}" for value in values),
            f"{up:,.0f} B",
            f"{down:,.0f} B",
            f"{_per_round(first, 'uplink_bytes') / up:.1f}",
            f"{_per_round(first, 'downlink_bytes') / down:.1f}",
            f"{_per_round(rows, 'seconds'):.1f}",
            f"{_per_round(rows, 'update_seconds'):.2f}",
        )
    Console(width=190).print(table)


def _per_round(rows: list[dict[str, Any]], key: str) -> float:
    return mean(float(row[key]) / int(row["rounds"]) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[FULL, DOME])
    parser.add_argument("--records", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rates", type=float, nargs="+")
    parser.add_argument("--overrides", nargs="+", default=[])
    chosen = parser.parse_args()
    runs = Runs(chosen.records, data_root=chosen.data_root)
    if chosen.rates:
        _tried(runs, chosen.rows, chosen.rates, chosen.overrides)
    else:
        _compared(runs, chosen.rows, chosen.seeds, chosen.workers, chosen.overrides)


if __name__ == "__main__":
    main()
