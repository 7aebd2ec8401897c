"""FedAvg averages by the number of examples."""

from collections.abc import Callable

import torch

from fedsketch.client.app import app
from fedsketch.runtime.local import LocalGrid
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.local.update import client_update
from fedsketch.tasks.workload import Workload
from tests.rounds import ask, coordinator_of


def test_weights_are_the_numbers_of_examples(
    make_strategy: Callable[..., Strategy],
) -> None:
    strategy = make_strategy(
        "strategy=fedavg", "data/partition=by_size", "strategy.local.batch=0", "privacy=none"
    )
    workload = Workload(strategy.config)
    sizes = [len(workload.shard(client)) for client in range(6)]
    assert len(set(sizes)) > 3
    start = strategy.model.vector.clone()
    updates = [
        client_update(
            workload.model(),
            workload.shard(client),
            strategy.config.strategy.local,
            torch.Generator(),
        ).clone()
        for client in range(6)
    ]
    grid = LocalGrid(app, 6)
    messages = ask(strategy, 1, grid)
    coordinator_of(strategy).aggregate_train(1, grid.send_and_receive(messages))

    weighted = sum(size * update for size, update in zip(sizes, updates, strict=True)) / sum(sizes)
    torch.testing.assert_close(strategy.model.vector, start - weighted, rtol=1e-4, atol=1e-6)
    unweighted = start - torch.stack(updates).mean(dim=0)
    assert not torch.allclose(strategy.model.vector, unweighted, atol=1e-3)
