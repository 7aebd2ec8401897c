"""The simulator of whole cohorts: who is in which sum, who is lost, what fits into memory."""

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message

from fedsketch.client.app import app
from fedsketch.errors import ConfigError
from fedsketch.runtime import batched_clients as cohort
from fedsketch.runtime.batched_grid import BatchedGrid
from fedsketch.secagg import WrappedGrid
from fedsketch.server.grids.stack import build_grids
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.rounds.codec import uploaded
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.data.shards import Shards
from fedsketch.tasks.workload import Workload
from tests.rounds import ask, coordinator_of

MakeStrategy = Callable[..., Strategy]
COHORT = ("runtime=cohort", "privacy.randomness=seeded")
MASKED = (*COHORT, "secagg=semi_honest", "privacy.against=server")


def _grid(strategy: Strategy) -> WrappedGrid:
    coordinator = coordinator_of(strategy)
    _, grid = build_grids(BatchedGrid(app, strategy.config), coordinator)
    coordinator.identify_clients(grid)
    return grid


def _asked(strategy: Strategy, grid: WrappedGrid, server_round: int = 1) -> list[Message]:
    messages = ask(strategy, server_round, grid)
    return list(grid.send_and_receive(messages))


def _members(reply: Message) -> list[int]:
    survivors = reply.content.config_records["secagg"]["survivors"]
    assert isinstance(survivors, list)
    return [int(node) for node in survivors]


def test_a_cohort_is_one_sum(make_strategy: MakeStrategy) -> None:
    for secagg in (MASKED, COHORT):
        strategy = make_strategy(*secagg)
        (reply,) = _asked(strategy, _grid(strategy))
        assert len(_members(reply)) == 6
        assert uploaded(reply.content).shape == (strategy.vector_length(1),)


def test_groups_are_disjoint_and_drawn_anew_every_round(make_strategy: MakeStrategy) -> None:
    groups = ("strategy=fedceo", "strategy.every=1", "strategy.start=slots", "strategy.groups=2")
    strategy = make_strategy(*MASKED, *groups, "secagg.colluders=0.0")
    grid, seen = _grid(strategy), set[tuple[int, ...]]()
    for server_round in range(1, 9):
        replies = _asked(strategy, grid, server_round)
        assert Counter(itertools.chain(*map(_members, replies))) == Counter(range(2, 8))
        assert [len(_members(reply)) for reply in replies] == [3, 3]
        seen |= {tuple(_members(reply)) for reply in replies}
    assert len(seen) > 2


def test_single_uploads_where_the_strategy_wants_them(make_strategy: MakeStrategy) -> None:
    parts = ("strategy=fedceo", "strategy.every=1", "strategy.start=slots")
    strategy = make_strategy(*COHORT, *parts)
    assert sorted(map(_members, _asked(strategy, _grid(strategy)))) == [[n] for n in range(2, 8)]


def test_a_client_without_finite_numbers_is_lost_alone(
    make_strategy: MakeStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = make_strategy(*COHORT, "clients.tolerated_dropouts=0.2")
    find = Workload.shards

    def broken(workload: Workload, clients: list[int]) -> Shards:
        found = find(workload, clients)
        inputs = found.examples.inputs.clone()
        inputs[workload.partitioned.spans[4].start] = torch.nan
        return Shards(Examples(inputs, found.examples.targets), found.spans)

    monkeypatch.setattr(Workload, "shards", broken)
    coordinator_of(strategy).aggregate_train(1, _asked(strategy, _grid(strategy)))
    assert coordinator_of(strategy).arrived == 5
    assert list(coordinator_of(strategy).dropped) == [4]
    assert "nan or inf" in coordinator_of(strategy).dropped[4]
    assert torch.isfinite(strategy.model.vector).all()


def test_a_round_that_secure_aggregation_refuses_is_refused(make_strategy: MakeStrategy) -> None:
    """Although there are no masks: it is a simulation of that run."""
    strategy = make_strategy(
        *("runtime=cohort", "secagg=pairwise", "clients.total=1030", "clients.per_round=1030"),
        "data.examples=1030",
    )
    with pytest.raises(ConfigError, match=r"At most 1024 clients.* clients.per_round.*semi_honest"):
        _asked(strategy, _grid(strategy))


@pytest.mark.parametrize("partition", ["iid", "by_size"])
def test_parts_fit_into_the_memory(
    make_strategy: MakeStrategy, monkeypatch: pytest.MonkeyPatch, partition: str
) -> None:
    """Every client is in one part; parts are as many as threads can share; the sum does not depend on how many threads
    there are."""
    monkeypatch.setattr(cohort, "_CACHED", 4000)
    sums, parts = [], list[list[int]]()
    find = cohort.BatchedClients._parts

    def watched(self: cohort.BatchedClients, common: object, clients: list[int]) -> object:
        found = list(find(self, common, clients))  # type: ignore[arg-type]
        parts.extend(found)
        return found

    monkeypatch.setattr(cohort.BatchedClients, "_parts", watched)
    for workers in (1, 2):
        parts.clear()
        strategy = make_strategy(
            *(*MASKED, f"data/partition={partition}", f"runtime.workers={workers}"),
            *("clients.total=20", "clients.per_round=20", "secagg.colluders=0.0"),
        )
        (reply,) = _asked(strategy, _grid(strategy))
        sums.append(uploaded(reply.content))
        assert Counter(itertools.chain(*parts)) == Counter(range(20))
        sizes = [[strategy.workload.size(client) for client in part] for part in parts]
        assert 20 > len(parts) > 2
        assert all(len(part) == 1 or 4 * len(part) * max(part) * 9 < 4000 for part in sizes)
    if partition == "iid":  # else the parts differ, and with them the noise
        assert len(set(map(len, sizes))) <= 2
    assert sums[0].shape == sums[1].shape


def test_noise_does_not_depend_on_the_threads(make_strategy: MakeStrategy) -> None:
    sums = []
    for _ in range(2):
        strategy = make_strategy(*MASKED, "runtime.workers=3")
        (reply,) = _asked(strategy, _grid(strategy))
        sums.append(uploaded(reply.content))
    np.testing.assert_array_equal(sums[0], sums[1])


_PEAK = """
import json, resource, sys
from pathlib import Path
from fedsketch.conf import compose
from fedsketch.runtime.cli import run
run(compose(sys.argv[2:]), Path(sys.argv[1]))
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_clients(tmp_path: Path) -> None:
    """100 of 1,000 and 100 of 10,000 clients, on the same examples."""
    peaks = []
    for total in (1_000, 10_000):
        done = subprocess.run(
            [
                *(sys.executable, "-c", _PEAK, str(tmp_path / str(total))),
                *("strategy=dp_fedavg", "runtime=cohort", "secagg=semi_honest", "rounds=3"),
                *("data=synthetic", "data.examples=10000", "data.shape=[1,28,28]", "device=cpu"),
                *("clients.per_round=100", f"clients.total={total}", "evaluate_every=3"),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout.rsplit("peak", 1)[1]))
    assert peaks[1] < peaks[0] + 60  # MiB; one vector for each client would be 870 more
