"""Flower's own strategies, on the noisy mean: the same steps as on the replies of the clients, and what is refused."""

from collections.abc import Callable
from typing import Any

import flwr.serverapp.strategy
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedsketch.client.app import app
from fedsketch.conf import compose
from fedsketch.conf.strategy.flower import OPTIONS, REFUSED
from fedsketch.errors import ConfigError
from fedsketch.runtime.local import LocalGrid
from fedsketch.strategies.algorithm import Aggregate, Strategy
from fedsketch.strategies.local.update import batch_generator, client_update
from tests.rounds import ask, coordinator_of

MakeStrategy = Callable[..., Strategy[Any]]
QUIET = ("strategy=flower", "privacy=none", "secagg=none", "strategy.local.batch=3")
CHOICES = {
    "FedAvg": (),
    "FedAvgM": (
        "strategy.options.server_learning_rate=0.7",
        "strategy.options.server_momentum=0.9",
    ),
    "FedAdagrad": ("strategy.options.eta=0.05",),
    "FedAdam": ("strategy.options.eta=0.05", "strategy.options.tau=0.01"),
    "FedYogi": ("strategy.options.eta=0.05", "strategy.options.beta_1=0.5"),
}


def _play(strategy: Strategy[Any], rounds: range) -> torch.Tensor:
    grid = LocalGrid(app, strategy.config.clients.total)
    for server_round in rounds:
        replies = grid.send_and_receive(ask(strategy, server_round, grid))
        coordinator_of(strategy).aggregate_train(server_round, replies)
    return strategy.model.vector.clone()


def _by_flower(strategy: Strategy[Any], use: str, rounds: range) -> torch.Tensor:
    """The model after the same rounds, in which Flower's strategy gets the model of each client."""
    options = strategy.settings.options.given
    inner = getattr(flwr.serverapp.strategy, use)(
        fraction_train=0.0, fraction_evaluate=0.0, **options
    )
    config, model = strategy.config, strategy.workload.model()
    arrays = ArrayRecord({"all": Array(model.vector.numpy().copy())})
    for server_round in rounds:
        grid: Any = None
        inner.configure_train(server_round, arrays, ConfigRecord(), grid)
        start, replies = torch.from_numpy(arrays["all"].numpy().copy()), []
        for client in range(config.clients.total):
            model.load(start)
            generator = batch_generator(config, client, server_round)
            shard = strategy.workload.shard(client)
            update = client_update(model, shard, config.strategy.local, generator)
            own = ArrayRecord({"all": Array((start - update).numpy())})
            content = RecordDict({"arrays": own, "metrics": MetricRecord({"num-examples": 1})})
            replies.append(Message(content, dst_node_id=1, message_type="train"))
        arrays, _ = inner.aggregate_train(server_round, replies)
    return torch.from_numpy(arrays["all"].numpy().copy()).float()


@pytest.mark.parametrize("use", OPTIONS)
def test_without_noise_it_is_flowers_own_on_the_replies(
    make_strategy: MakeStrategy, use: str
) -> None:
    """Up to the order of sums in float32."""
    strategy = make_strategy(*QUIET, f"strategy.use={use}", *CHOICES[use])
    ours = _play(strategy, range(1, 4))
    theirs = _by_flower(strategy, use, range(1, 4))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert float((ours - strategy.workload.model().vector).abs().max()) > 0.01


@pytest.mark.parametrize("use", OPTIONS)
def test_a_resumed_run_goes_on_bit_by_bit(make_strategy: MakeStrategy, use: str) -> None:
    made = [make_strategy(*QUIET, f"strategy.use={use}", *CHOICES[use]) for _ in range(2)]
    unbroken, resumed = made
    _play(unbroken, range(1, 3))
    state = coordinator_of(unbroken).checkpoint_state()
    resumed.model.load(unbroken.model.vector)
    coordinator_of(resumed).resume(state)
    assert torch.equal(_play(unbroken, range(3, 5)), _play(resumed, range(3, 5)))


@pytest.mark.parametrize("use", [*REFUSED, "FedTomorrow"])
def test_a_strategy_that_needs_more_than_a_sum_is_refused(use: str) -> None:
    with pytest.raises(ConfigError, match=f"strategy.use={use} cannot be used, because"):
        compose(["strategy=flower", f"strategy.use={use}"])


def test_every_strategy_of_flower_is_used_or_refused() -> None:
    classes = set(flwr.serverapp.strategy.__all__) - {"Result", "Strategy"}
    assert classes == {*OPTIONS, *REFUSED}


def test_an_option_of_another_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match="FedAvgM, which takes server_learning_rate"):
        compose(["strategy=flower", "strategy.use=FedAvgM", "strategy.options.eta=1"])


def test_the_guarantee_is_that_of_dp_fedavg(make_strategy: MakeStrategy) -> None:
    local = ("strategy.local.batch=3", "strategy.local.epochs=2")
    flower = make_strategy("strategy=flower", *local)
    usual = make_strategy("strategy=dp_fedavg", *local)
    assert flower.releases(1, 6, 6) == usual.releases(1, 6, 6)


def test_only_the_sum_reaches_flowers_strategy(
    make_strategy: MakeStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = make_strategy(*QUIET, "strategy.use=FedAvg")
    start, given = strategy.model.vector.clone(), []
    inner = strategy.inner.aggregate_train

    def seen(server_round: int, replies: list[Message]) -> Any:
        given.extend(replies)
        return inner(server_round, replies)

    monkeypatch.setattr(strategy.inner, "aggregate_train", seen)
    strategy.update(1, Aggregate(torch.full((strategy.model.size,), 3.0), 6, 0.0))
    (reply,) = given
    assert len(reply.content.array_records["arrays"]) == len(strategy.model.layout)
    torch.testing.assert_close(strategy.model.vector, start - 0.5)
