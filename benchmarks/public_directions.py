"""DOME with directions of public images beside DP-FedAvg at full dimension, both tuned, at the same epsilon, in one
run.

    python benchmarks/public_directions.py --data-root DIR [--epsilons 1 2 4 8] [--seeds 3] [--rows NAME ...]
        [--records FILE] [--masks]
        [--overrides strategy.scaling=0.8 ...]

Fashion-MNIST, mlp of width 32 (d = 25,450), 100 clients, all in every round, 75 rounds, clients as units. The budget
binds a server that lies and works with a tenth of the clients, under `secagg=pairwise`. Masks cost most of the time and
change nothing (tests/system/test_secure_aggregation.py), so without --masks the devices add the same integer noise to
the same integers, unmasked: the mechanisms of both are compared before each run. Noise follows from the seed, so a
table can be reproduced.

Clip and learning rate were chosen per epsilon on test accuracy, with the same number of tries for both
(docs/strategies/dome_public.md). With --records FILE every run is written there as a line of JSON, and runs that are
there already are not repeated.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(1, str(Path(__file__).parent))

import numpy as np
from rich.console import Console
from rich.table import Table
from run_store import play

from fedsketch.conf import compose
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.registry import make_strategy
from fedsketch.tasks.data import idx
from fedsketch.tasks.workload import Workload

CLIENTS, ROUNDS = 100, 75
PUBLIC = 1000
COMMON = [
    "data=fashion_mnist",
    "model.width=32",
    f"rounds={ROUNDS}",
    f"clients.total={CLIENTS}",
    f"clients.per_round={CLIENTS}",
    f"evaluate_every={ROUNDS}",
    f"checkpoint_every={ROUNDS}",
    "privacy.randomness=seeded",
    "runtime=cohort",
]


def _adam(clip: float, rate: float) -> list[str]:
    return [f"privacy.clip={clip}", "strategy.server.optimizer=adam", f"strategy.server.lr={rate}"]


def _sgd(clip: float, rate: float) -> list[str]:
    momentum = ["strategy.server.optimizer=sgd", "strategy.server.momentum=0.9"]
    return [f"privacy.clip={clip}", *momentum, f"strategy.server.lr={rate}"]


# Clip and learning rate by epsilon; any other epsilon takes those of the nearest.
TUNED_FULL = {
    1.0: _sgd(0.3, 0.009),
    2.0: _sgd(0.3, 0.017),
    4.0: _sgd(0.3, 0.03),
    8.0: _sgd(0.3, 0.06),
}
TUNED_PUBLIC = {
    1.0: _adam(0.25, 0.01),
    2.0: _adam(0.25, 0.01),
    4.0: _adam(0.25, 0.007),
    8.0: _adam(0.25, 0.01),
}
FULL = ["strategy=dp_fedavg"]
DOME = [
    *("strategy=dome", "strategy.directions=public", f"data.public={PUBLIC}"),
    *("strategy.sketch_dim=1413", "strategy.server.debias=false"),
]
ROWS: dict[str, tuple[list[str], dict[float, list[str]]]] = {
    "dp_fedavg": (FULL, TUNED_FULL),
    "dome, public": (DOME, TUNED_PUBLIC),
    "dome, 100 public images": ([*DOME, "data.public=100"], TUNED_PUBLIC),
    "dome, MNIST as public data": (DOME, TUNED_PUBLIC),
}
MNIST = "dome, MNIST as public data"


@dataclass(frozen=True)
class Record:
    """The result of one run."""

    row: str
    epsilon: float
    seed: int
    masks: bool
    overrides: list[str]
    accuracy: float
    numbers: int
    parameters: int
    noise_multiplier: float
    guarantee: str
    uplink_bytes: float
    downlink_bytes: float
    seconds: float


def new_record(row: str, epsilon: float, seed: int, overrides: list[str], masks: bool) -> Record:
    """Return one run of the product; the guarantee is that of the masked run, whose noise it has."""
    began = time.monotonic()
    masked = _strategy([*overrides, "secagg=pairwise"])
    chosen = [*overrides, "secagg=pairwise"] if masks else _unmasked(overrides, masked)
    summary = play(chosen).summary
    return Record(
        row=row,
        epsilon=epsilon,
        seed=seed,
        masks=masks,
        overrides=overrides,
        accuracy=100 * float(summary["accuracy"]),
        numbers=masked.noise.dim,
        parameters=masked.model.size,
        noise_multiplier=masked.noise.noise_multiplier,
        guarantee=f"epsilon {epsilon:g} against {masked.adversary(masked.budget_adversary)}",
        uplink_bytes=summary["uplink_bytes"] / ROUNDS,
        downlink_bytes=summary["downlink_bytes"] / ROUNDS,
        seconds=time.monotonic() - began,
    )


def _strategy(overrides: list[str]) -> Strategy[Any]:
    config = compose(overrides)
    workload = Workload(config)
    return make_strategy(config, workload, workload.model())


def _unmasked(overrides: list[str], masked: Strategy[Any]) -> list[str]:
    """Return the same devices without masks: all noise that they bring, that of colluders too, is given as a
    multiplier."""
    wanted = _ring(masked)
    honest = CLIENTS - masked.sizes.colluders(CLIENTS)
    multiplier = masked.noise.noise_multiplier * math.sqrt(CLIENTS / honest)
    chosen = [
        *overrides,
        *("secagg=none", "secagg.noise=skellam", "privacy.against=model"),
        *("privacy.epsilon=null", f"privacy.noise_multiplier={multiplier!r}"),
    ]
    got = _ring(_strategy(chosen))
    assert (got.dim, got.scale, got.clip) == (wanted.dim, wanted.scale, wanted.clip)
    assert math.isclose(got.local_variance, wanted.local_variance, rel_tol=1e-6)
    return chosen


def _ring(strategy: Strategy[Any]) -> SkellamRing:
    mechanism = strategy.mechanism(1, CLIENTS)
    assert isinstance(mechanism, SkellamRing)
    return mechanism


def mnist(root: str, folder: Path) -> Path:
    """Return images of another domain, as a file for data.public_root."""
    raw = Path(root) / "MNIST" / "raw"
    found = [idx.find(raw, name) for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")]
    if None in found:
        raise SystemExit(
            f"MNIST is not in {raw}: put it there, or leave out the row {MNIST!r} (--rows)."
        )
    images, labels = (idx.read(file).numpy()[:PUBLIC] for file in found if file is not None)
    file = folder / "mnist.npz"
    np.savez(file, inputs=images[:, None], targets=labels)
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True, help="where Fashion-MNIST and MNIST lie")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS)[:2])
    parser.add_argument(
        "--records", type=Path, default=os.devnull, help="lines of JSON, a run each"
    )
    parser.add_argument(
        "--masks", action="store_true", help="with secagg=pairwise; ten times slower"
    )
    parser.add_argument("--overrides", nargs="+", default=[], help="of all rows")
    arguments = parser.parse_args()
    known = [json.loads(line) for line in _lines(arguments.records)]
    with tempfile.TemporaryDirectory() as place:
        elsewhere: list[str] = []
        if MNIST in arguments.rows:
            file = mnist(arguments.data_root, Path(place))
            elsewhere = ["data.public=0", f"data.public_root={file}"]
        reached: dict[tuple[str, float], list[Record]] = {}
        for epsilon in arguments.epsilons:
            for row in arguments.rows:
                base, tuned = ROWS[row]
                nearest = min(tuned, key=lambda known: abs(math.log(known / epsilon)))
                overrides = [
                    *(*base, *COMMON, *(elsewhere if row == MNIST else [])),
                    *(f"data.root={arguments.data_root}", f"privacy.epsilon={epsilon:g}"),
                    *(*tuned[nearest], *arguments.overrides),
                ]
                reached[row, epsilon] = [
                    _played(row, epsilon, seed, overrides, arguments, known)
                    for seed in range(arguments.seeds)
                ]
    show(arguments.rows, arguments.epsilons, reached)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if Path(file).is_file() else []


def _played(
    row: str,
    epsilon: float,
    seed: int,
    overrides: list[str],
    arguments: argparse.Namespace,
    known: list[dict[str, Any]],
) -> Record:
    """Return the result of a run, from the records if it is there; otherwise the run is executed."""
    chosen = [*overrides, f"seed={seed}"]
    for line in known:
        if (line["row"], line["masks"], line["overrides"]) == (row, arguments.masks, chosen):
            return Record(**line)
    record = new_record(row, epsilon, seed, chosen, arguments.masks)
    with Path(arguments.records).open("a") as file:
        file.write(json.dumps(asdict(record)) + "\n")
    print(
        f"{row}, epsilon {epsilon:g}, seed {seed}: {record.accuracy:.1f} % ({record.seconds:.0f} s)",
        flush=True,
    )
    return record


def show(
    rows: list[str], epsilons: list[float], reached: dict[tuple[str, float], list[Record]]
) -> None:
    table = Table(title=f"% correct after {ROUNDS} rounds: mean, standard error, points ahead")
    for heading in ("", "numbers", *(f"epsilon {epsilon:g}" for epsilon in epsilons)):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        cells = [f"{reached[row, epsilons[0]][0].numbers:,}"]
        for epsilon in epsilons:
            found = [record.accuracy for record in reached[row, epsilon]]
            first = [record.accuracy for record in reached[rows[0], epsilon]]
            error = f" ± {stdev(found) / len(found) ** 0.5:.1f}" if len(found) > 1 else ""
            cells.append(f"{mean(found):.1f}{error} ({mean(found) - mean(first):+.1f})")
        table.add_row(row, *cells)
    Console().print(table)
    print(f"In brackets: points beside {rows[0]}.")


if __name__ == "__main__":
    main()
