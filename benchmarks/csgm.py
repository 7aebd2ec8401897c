"""What L2-CSGM saves and costs: noise against compression (the paper's Figure 1), and accuracy beside the uncompressed
Gaussian mechanism.

    python benchmarks/csgm.py                                        # noise only, a few seconds
    python benchmarks/csgm.py --figure FILE.svg                      # the same as a picture
    python benchmarks/csgm.py --data-root DIR [--seeds 3] [--records FILE] [--cohorts 100 20] [--rows "rate 0.01" ...]

Accuracy: Fashion-MNIST, mlp of width 32 (d = 25,450), 100 clients of 600 images, 75 rounds, epsilon 5 against those who
see the models. Cohorts of 100 are all clients; cohorts of 20 come in shuffled passes, so that no row gains by the draw
of its cohorts. Clip and learning rate were chosen once for each cohort, with seed 0, on test accuracy without
compression, and are the same for all rows. Noise follows from the seed, so that the table can be reproduced. A peak of
0.0056 is 3 clips over sqrt(d): it cuts three numbers in a thousand of a whole update, where the default cuts none. With
--records FILE runs that are in it already are not repeated.
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

from fedsketch.privacy.accounting.calibration import calibrate
from fedsketch.privacy.accounting.releases import Adversary, NoSampling, Release, Unit
from fedsketch.privacy.mechanisms.coordinate_sampling import CoordinateSampling, default_peak
from fedsketch.server.report.number_format import plain, size
from fedsketch.server.report.plots import COLORS, Axis, Line, line_chart

ROUNDS, CLIENTS = 75, 100
SETTINGS = [
    "data=fashion_mnist",
    "model.width=32",
    f"rounds={ROUNDS}",
    f"clients.total={CLIENTS}",
    f"evaluate_every={ROUNDS}",
    f"checkpoint_every={ROUNDS}",
    "privacy.epsilon=5",
    "privacy.clip=0.3",
    "privacy.against=model",
    "privacy.randomness=seeded",
    "strategy.server.optimizer=sgd",
    "strategy.server.momentum=0.9",
    "device=cpu",
    "runtime=cohort",
]
COHORTS = {
    100: ["clients.per_round=100", "strategy.server.lr=0.04"],
    20: ["clients.per_round=20", "clients.sampling=passes", "strategy.server.lr=0.02"],
}
CSGM = ["strategy=csgm"]
ROWS = {
    "dp_fedavg": ["strategy=dp_fedavg", "secagg=none"],
    "rate 0.1": [*CSGM, "strategy.rate=0.1"],
    "rate 0.01": [*CSGM, "strategy.rate=0.01"],
    "rate 0.01, peak 0.0056": [*CSGM, "strategy.rate=0.01", "strategy.peak=0.0056"],
    "rate 0.01, 8 bits": [*CSGM, "strategy.rate=0.01", "strategy.bits=8"],
    "rate 0.01, common mask": [*CSGM, "strategy.rate=0.01", "strategy.mask=common"],
}
SIZES = (1_000, 10_000, 100_000, 1_000_000)
RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


def noise(dim: int, rate: float, rounds: int) -> float:
    """Return the noise multiplier sigma / (gamma D2) at epsilon 5, delta 1e-5, for 100 clients that all take part in
    so many rounds."""
    peak = default_peak(1.0, dim, CLIENTS)
    law = CoordinateSampling(dim=dim, clip=1.0, peak=peak, rate=rate, bits=16)

    def shown(z: float) -> Release:
        return law.release_to(z**2, Unit.CLIENT, NoSampling(), Adversary.MODEL)

    return calibrate(shown, rounds=rounds, epsilon=5.0, delta=1e-5)


def noise_table(console: Console, figure: Path | None) -> None:
    """How much more noise compression needs, for models of several sizes."""
    ratios = {
        (rounds, dim): [noise(dim, rate, rounds) / noise(dim, 1.0, rounds) for rate in RATES]
        for rounds in (1, ROUNDS)
        for dim in SIZES
    }
    for rounds in (1, ROUNDS):
        table = Table(
            title=f"Noise over that of the Gaussian mechanism, epsilon 5, rounds={rounds}"
        )
        for column in ("numbers", *(f"rate {rate:g}" for rate in RATES)):
            table.add_column(column, justify="right")
        for dim in SIZES:
            table.add_row(f"{dim:,}", *(f"{ratio:.3f}" for ratio in ratios[rounds, dim]))
        console.print(table)
    if figure is not None:
        lines = [
            Line(f"{dim:,} numbers", [1 / rate for rate in RATES], ratios[ROUNDS, dim], color)
            for dim, color in zip(SIZES, COLORS, strict=False)
        ]
        alt = f"Noise of L2-CSGM over that of the Gaussian mechanism, against compression; {ROUNDS} rounds."
        axes = Axis("noise, times the Gaussian's", plain), Axis("compression", plain, log=True)
        figure.write_text(line_chart("csgm", alt, lines, *axes))


def accuracy_table(console: Console, options: argparse.Namespace) -> None:
    runs = Runs(options.records)
    for cohort in options.cohorts:
        table = Table(title=f"Accuracy, epsilon 5, cohorts of {cohort}, {options.seeds} seeds")
        for column in ("", "accuracy", "each seed", "behind", "noise", "sent in a round"):
            table.add_column(column, justify="right" if column else "left")
        best: float | None = None
        for name in dict.fromkeys(["dp_fedavg", *options.rows]):
            asked = [*ROWS[name], *SETTINGS, *COHORTS[cohort], f"data.root={options.data_root}"]
            asked += options.overrides
            accuracies = runs.accuracies(asked, options.seeds)
            one = runs.play([*asked, "seed=0"])
            mean, error = mean_and_error(accuracies)
            best = mean if best is None else best
            table.add_row(
                name,
                f"{mean:.1f} ± {error:.1f}",
                " ".join(f"{value:.1f}" for value in accuracies),
                f"{best - mean:+.1f}",
                f"{one['noise_multiplier']:.2f}",
                size(one["uplink_bytes"] / ROUNDS),
            )
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", help="the folder with FashionMNIST in it: for accuracies")
    parser.add_argument("--figure", type=Path, help="where to draw noise against compression")
    parser.add_argument("--records", type=Path, help="JSON lines of runs, to go on with")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cohorts", type=int, nargs="+", choices=list(COHORTS), default=[100, 20])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--overrides", nargs="+", default=[], help="of all rows")
    options = parser.parse_args()
    console = Console(width=120)
    if options.data_root is None:
        noise_table(console, options.figure)
    else:
        accuracy_table(console, options)


if __name__ == "__main__":
    main()
