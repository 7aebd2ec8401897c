"""Which ring `secagg.bits=auto` takes in some runs, and what it costs.

    python benchmarks/rings.py [overrides of all runs]

A row of a Markdown table for each kind of round: the bits of the smallest ring that serves, how much more noise a sum
has in it than in one of 64 bits, the same with one bit less, and the bytes of a vector, also with 32 bits. Nothing is
trained.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# Other files of this folder have the names of packages: look for those above it first.
sys.path.insert(0, str(Path(__file__).parents[1]))

from fedsketch.conf import compose
from fedsketch.privacy.mechanisms.ring_choice import LARGEST_ROTATED_RING
from fedsketch.privacy.mechanisms.skellam_ring import SMALLEST_RING, SkellamRing
from fedsketch.privacy.mechanisms.smallest_ring import error_std
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.registry import make_strategy
from fedsketch.strategies.rounds.evaluation import FederatedEvaluation
from fedsketch.tasks.workload import Workload

RUNS = {
    "the demo": [],
    "the demo, an evaluation": ["evaluation=federated"],
    "the demo, a round before `strategy.warm_up=1` ends": ["strategy.warm_up=1"],
    "the demo, `privacy=example`": ["privacy=example"],
    "`experiment=dome`": ["experiment=dome"],
    "`experiment=fed_sgm`": ["experiment=fed_sgm"],
    "`experiment=dome_flat`": ["experiment=dome_flat"],
    "`experiment=dp_fedavg`": ["experiment=dp_fedavg"],
}
HEAD = ["vector", "n", "numbers", "bits", "more noise", "one bit less", "bytes", "with 32 bits"]


def main() -> None:
    print(_line(HEAD))
    print(_line(["---"] * len(HEAD)))
    for name, overrides in RUNS.items():
        print(_line(_cells(name, [*overrides, *sys.argv[1:]])))


def _cells(name: str, overrides: list[str]) -> list[str]:
    chosen, large = _ring(overrides, "auto"), _ring(overrides, 64)
    sizes = [f"{(chosen.dim * bits + 7) // 8:,}" for bits in (chosen.bits, 32)]
    costs = [_more(chosen, large), _one_less(overrides, chosen, large)]
    return [name, f"{chosen.clients:,}", f"{chosen.dim:,}", f"{chosen.bits}", *costs, *sizes]


def _one_less(overrides: list[str], chosen: SkellamRing, large: SkellamRing) -> str:
    """What stands against a ring with one bit less."""
    bits = chosen.bits - 1
    if bits < SMALLEST_RING:
        return "there is none"
    if bits == LARGEST_ROTATED_RING and not chosen.rotate:
        return "rotates"
    less = _ring(overrides, bits)
    if less.rounds_once != large.rounds_once:
        return "rounds rows"
    return _more(less, large)


def _more(ring: SkellamRing, large: SkellamRing) -> str:
    return f"{100 * max(0.0, error_std(ring) / error_std(large) - 1):.2f} %"


def _ring(overrides: list[str], bits: int | str) -> SkellamRing:
    config = compose([*overrides, f"secagg.bits={bits}"])
    workload = Workload(config, only_to_plan=True)
    strategy: Strategy[Any] = make_strategy(config, workload, workload.model())
    if "evaluation=federated" in overrides:
        strategy = FederatedEvaluation(strategy)
    mechanism = strategy.mechanism(1, config.clients.per_round)
    assert isinstance(mechanism, SkellamRing)
    return mechanism


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
