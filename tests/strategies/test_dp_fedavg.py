"""DP-FedAvg without noise is training; with several local steps it moves like SGD."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from fedsketch.client.app import app
from fedsketch.runtime.local import LocalGrid
from fedsketch.strategies.algorithm import Strategy
from fedsketch.tasks.workload import Workload
from tests.rounds import ask, coordinator_of

MakeStrategy = Callable[..., Strategy]
PLAIN = ("strategy=dp_fedavg", "privacy=none", "secagg=none", "strategy.server.optimizer=sgd")


def _play(strategy: Strategy, rounds: int) -> None:
    grid = LocalGrid(app, strategy.config.clients.total)
    for round in range(1, rounds + 1):
        messages = ask(strategy, round, grid)
        coordinator_of(strategy).aggregate_train(round, grid.send_and_receive(messages))


def _centralised(workload: Workload, rounds: int, rate: float, momentum: float) -> torch.Tensor:
    """Full-batch training on the whole set, by torch alone."""
    model, data = workload.model(), workload.dataset.train
    parameters = list(model.module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=momentum)
    for _ in range(rounds):
        optimizer.zero_grad()
        functional.cross_entropy(model.module(data.inputs), data.targets).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in parameters])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_noise_equals_centralised_training(
    make_strategy: MakeStrategy, momentum: float
) -> None:
    strategy = make_strategy(
        *PLAIN, "strategy.server.lr=0.5", f"strategy.server.momentum={momentum}"
    )
    _play(strategy, 20)
    workload = Workload(strategy.config)
    assert {len(workload.shard(client)) for client in range(6)} == {10}  # equal shards
    expected = _centralised(workload, 20, 0.5, momentum)
    torch.testing.assert_close(strategy.model.vector, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected, workload.model().vector, atol=0.1)  # it did move


def test_unit_example_without_noise_equals_centralised_training(
    make_strategy: MakeStrategy,
) -> None:
    """Sums over unequal shards, divided by all examples: the shards need not be equal."""
    strategy = make_strategy(
        *PLAIN, "privacy.unit=example", "data/partition=by_size", "strategy.server.lr=0.5"
    )
    _play(strategy, 20)
    expected = _centralised(Workload(strategy.config), 20, 0.5, 0.0)
    torch.testing.assert_close(strategy.model.vector, expected, rtol=1e-4, atol=1e-5)


def test_one_client_with_local_steps_and_rate_one_is_local_sgd(make_strategy: MakeStrategy) -> None:
    local = ("clients.total=1", "clients.per_round=1", "strategy.local.steps=5")
    strategy = make_strategy(
        *PLAIN, *local, "strategy.local.lr=0.5", "strategy.local.batch=0", "strategy.server.lr=1"
    )
    _play(strategy, 4)
    expected = _centralised(Workload(strategy.config), 20, 0.5, 0.0)
    torch.testing.assert_close(strategy.model.vector, expected, rtol=1e-4, atol=1e-5)


def test_every_clients_update_is_clipped(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy(
        "privacy.noise_multiplier=0",
        "privacy.epsilon=null",
        "privacy.clip=0.001",
        "strategy.server.optimizer=sgd",
        "strategy.server.lr=1",
    )
    before = strategy.model.vector.clone()
    _play(strategy, 1)
    moved = (strategy.model.vector - before).norm()
    assert 0 < moved <= 0.001 * (1 + 1e-4)  # a mean of vectors of this norm
