"""DOME beside DP-FedAvg at full dimension and beside random sketches of the same size, at the same epsilon, in one run.

    python benchmarks/dome.py --data-root DIR [--seeds 3] [--epsilons 2 4 8] [--rounds 150] [--clients 100]
        [--rows NAME ...]
        [--overrides strategy.sketch_dim=490 ...]

Fashion-MNIST, mlp of width 32 (d = 25,450), 100 clients of 600 images, all in every round, clients as units. The runs
sum the same integers with the same integer noise as under secure aggregation, without the masks, which change nothing
(tests/system/test_secure_aggregation.py); nobody is assumed to collude. One learning rate (0.0075, Adam) and one clip
(0.1) for all rows: both were chosen on test accuracy with seed 0. Noise is secret, so numbers vary from run to run.
`rank` is the most learned directions that were in use in any round: where it is 0, DOME is a fresh random sketch in
every round.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(1, str(Path(__file__).parent))

from rich.console import Console
from rich.table import Table
from run_store import play

LEARN = ["strategy.keep=all", "strategy.learned_share=0.25"]
FRESH = ["strategy.learned_share=0"]
SETTINGS = ["experiment=clients_100", "privacy.clip=0.1", "strategy.server.lr=0.0075"]
DOME = [*SETTINGS, "strategy=dome", "strategy.server.debias=false", "strategy.sketch_dim=1413"]
FLAT = [*DOME[:-1], "strategy.sketch=flat", "strategy.sketch_dim=64"]
ROWS = {
    "dp_fedavg": [*SETTINGS, "strategy=dp_fedavg"],
    "dome": DOME,
    "dome, always learned": [*DOME, *LEARN],
    "dome, fresh random": [*DOME, *FRESH],
    "flat 64": FLAT,
    "flat 64, always learned": [*FLAT, *LEARN],
    "flat 64, fresh random": [*FLAT, *FRESH],
    "paper": ["experiment=paper_dome"],
}
DEFAULT = ["dp_fedavg", "dome", "dome, always learned", "flat 64", "flat 64, always learned"]


def run(overrides: list[str]) -> tuple[float, int]:
    """Return accuracy in percent, and the largest rank."""
    played = play(overrides)
    ranks = [row.get("sketch_rank") or 0 for row in played.rows]
    return 100 * float(played.summary["accuracy"]), int(max(ranks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True, help="where Fashion-MNIST lies")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 4.0, 8.0])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--clients", type=int, default=100, help="who share the 60,000 images")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=DEFAULT)
    parser.add_argument("--overrides", nargs="+", default=[], help="of all rows")
    arguments = parser.parse_args()
    common = [
        f"data.root={arguments.data_root}",
        "runtime=cohort",
        "secagg=none",
        "secagg.noise=skellam",
        "privacy.against=model",  # of the sum, which is all that the server sees under masks
        f"rounds={arguments.rounds}",
        f"clients.total={arguments.clients}",
        f"clients.per_round={arguments.clients}",
        f"evaluate_every={arguments.rounds}",
        f"checkpoint_every={arguments.rounds}",
    ]
    console = Console()
    table = Table(
        title=f"% correct after {arguments.rounds} rounds, {arguments.clients} clients, {arguments.seeds} seeds"
    )
    for heading in ("", *(f"epsilon {epsilon:g}" for epsilon in arguments.epsilons)):
        table.add_column(heading, justify="right" if heading else "left")
    reached: dict[tuple[str, float], float] = {}
    for name in arguments.rows:
        cells = []
        for epsilon in arguments.epsilons:
            chosen = [*ROWS[name], *common, f"privacy.epsilon={epsilon}", *arguments.overrides]
            began = time.monotonic()
            runs = [run([*chosen, f"seed={seed}"]) for seed in range(arguments.seeds)]
            reached[name, epsilon] = mean(accuracy for accuracy, _ in runs)
            rank = max(rank for _, rank in runs)
            each = ", ".join(f"{accuracy:.1f}" for accuracy, _ in runs)
            console.print(
                f"{name}, epsilon {epsilon:g}: {each} (rank {rank}, {time.monotonic() - began:.0f} s)"
            )
            behind = reached[name, epsilon] - reached[arguments.rows[0], epsilon]
            cells.append(f"{reached[name, epsilon]:.1f} ({behind:+.1f})")
        table.add_row(name, *cells)
    console.print(table)
    console.print(f"In brackets: points beside {arguments.rows[0]}.")


if __name__ == "__main__":
    main()
