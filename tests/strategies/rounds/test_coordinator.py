"""A round on the server: who is asked, what is summed, who is missing, and what is not applied."""

import copy
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedsketch.client.app import app
from fedsketch.errors import RoundAborted
from fedsketch.runtime.local import LocalGrid
from fedsketch.strategies.algorithm import Aggregate, Strategy
from fedsketch.strategies.rounds.codec import summed
from fedsketch.strategies.rounds.coordinator import signal_to_noise
from fedsketch.strategies.rounds.messages import Broadcast
from tests.rounds import ask, coordinator_of

MakeStrategy = Callable[..., Strategy]


def _ask(strategy: Strategy, grid: LocalGrid, round: int = 1) -> list[Message]:
    return list(ask(strategy, round, grid))


def _answer(messages: Iterable[Message], value: float, size: int) -> list[Message]:
    """Everybody sends the same vector."""
    vector = np.full(size, value, dtype=np.float32)
    return [_from(message, summed(vector)) for message in messages]


def _from(message: Message, content: object) -> Message:
    reply = Message(content, reply_to=message)  # type: ignore[call-overload]
    reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return reply


def _numbered(messages: list[Message]) -> list[Message]:
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"{number:032x}"
    return messages


def test_a_cohort_gets_one_broadcast_with_model_round_and_mechanism(
    make_strategy: MakeStrategy,
) -> None:
    strategy = make_strategy("clients.per_round=3")
    messages = _ask(strategy, LocalGrid(app, 6), round=4)
    assert len(messages) == coordinator_of(strategy).cohort_size == 3
    assert [m.metadata.dst_node_id for m in messages] == [
        c + 2 for c in coordinator_of(strategy).sampler.draw(4)
    ]
    for message in messages:
        broadcast = Broadcast.from_records(message.content)
        assert (broadcast.round, broadcast.config) == (4, strategy.config)
        assert broadcast.mechanism == strategy.mechanism(4, 3)
        assert torch.equal(broadcast.model, strategy.model.vector)


def test_a_retry_asks_the_same_draw_without_those_who_failed(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy("clients.per_round=4")
    grid = LocalGrid(app, 6)
    first = [m.metadata.dst_node_id for m in _ask(strategy, grid)]
    coordinator_of(strategy).leave_out(first[1:2])
    assert [m.metadata.dst_node_id for m in _ask(strategy, grid)] == [first[0], *first[2:]]
    coordinator_of(strategy).leave_out(first[2:3])
    assert [m.metadata.dst_node_id for m in _ask(strategy, grid)] == [first[0], first[3]]
    coordinator_of(strategy).lost.clear()
    assert [m.metadata.dst_node_id for m in _ask(strategy, grid)] == first


def test_if_hardly_anybody_delivers_all_are_asked_again(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy("clients.per_round=4")
    grid = LocalGrid(app, 6)
    first = [m.metadata.dst_node_id for m in _ask(strategy, grid)]
    coordinator_of(strategy).leave_out(first)
    assert [m.metadata.dst_node_id for m in _ask(strategy, grid)] == first


def test_dropped_clients_are_told_with_their_reasons(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy("clients.tolerated_dropouts=0.5")
    messages = _numbered(_ask(strategy, LocalGrid(app, 6)))
    replies = _answer(messages[:4], 1.0, strategy.model.size)
    replies.append(_from(messages[4], Error(2, "the battery is empty")))
    coordinator_of(strategy).aggregate_train(1, replies)  # client 5 says nothing at all
    assert coordinator_of(strategy).arrived == 4
    assert coordinator_of(strategy).dropped.keys() == {4, 5}
    assert "battery" in coordinator_of(strategy).dropped[4]
    assert "in time" in coordinator_of(strategy).dropped[5]


def test_too_few_abort_the_round_and_nothing_is_changed(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy("clients.tolerated_dropouts=0.34", "strategy.server.optimizer=adam")
    grid = LocalGrid(app, 6)
    coordinator_of(strategy).aggregate_train(
        1, _answer(_numbered(_ask(strategy, grid)), 1.0, strategy.model.size)
    )  # the optimiser has a state now
    model, state = strategy.model.vector.clone(), copy.deepcopy(strategy.state_dict())
    messages = _numbered(_ask(strategy, grid, 2))
    replies = _answer(messages[:3], 1.0, strategy.model.size)
    replies.append(_from(messages[3], Error(2, "out of memory")))
    with pytest.raises(RoundAborted, match=r"3 of 6 clients delivered, 4 are needed .*memory"):
        coordinator_of(strategy).aggregate_train(2, replies)
    assert torch.equal(strategy.model.vector, model)
    after = strategy.state_dict()["optimizer"]["state"][0]
    for key, value in state["optimizer"]["state"][0].items():
        assert torch.equal(after[key], value)


def test_exactly_enough_are_applied(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy("clients.tolerated_dropouts=0.34")
    before = strategy.model.vector.clone()
    messages = _numbered(_ask(strategy, LocalGrid(app, 6)))
    coordinator_of(strategy).aggregate_train(1, _answer(messages[:4], 1.0, strategy.model.size))
    assert not torch.equal(strategy.model.vector, before)


def test_the_sum_does_not_depend_on_the_order_of_arrival(make_strategy: MakeStrategy) -> None:
    ends = []
    for step in (1, -1):
        strategy = make_strategy("strategy.server.optimizer=sgd")
        messages = _numbered(_ask(strategy, LocalGrid(app, 6)))
        rng = np.random.default_rng(0)
        replies = [
            _from(m, summed((10.0**k * rng.standard_normal(strategy.model.size)).astype("f4")))
            for k, m in enumerate(messages)
        ]
        coordinator_of(strategy).aggregate_train(1, replies[::step])
        ends.append(strategy.model.vector.clone())
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("sampling", "unit", "count"),
    [
        ("passes", "client", 3.0),  # who arrived
        (
            "fixed",
            "client",
            2.0,
        ),  # whom one asked: how many of them arrived is a secret, as is who was asked
        ("poisson", "client", 2.0),  # whom one expects: the true number is a secret
        ("passes", "example", 30.0),  # 60 examples over 6 clients
        ("fixed", "example", 20.0),
        ("poisson", "example", 20.0),
    ],
)
def test_the_mean_divides_by_a_public_number(
    make_strategy: MakeStrategy, sampling: str, unit: str, count: float
) -> None:
    strategy = make_strategy(
        f"privacy={unit}", "clients.per_round=2", f"clients.sampling={sampling}"
    )
    assert strategy.units(Aggregate(torch.arange(4.0), clients=3, noise_std=1.0)) == count


def test_signal_to_noise_on_a_constructed_sum() -> None:
    # Noise of norm exactly std sqrt(d), orthogonal to a signal of norm 30: the estimate is exact.
    size, std = 10_000, 0.2
    noise, signal = torch.zeros(size), torch.zeros(size)
    noise[: size // 2] = std * 2**0.5
    signal[-1] = 30.0
    estimate = signal_to_noise(Aggregate(signal + noise, clients=5, noise_std=std))
    assert estimate == pytest.approx(30.0 / (std * size**0.5), rel=1e-6)


def test_signal_to_noise_of_pure_noise_is_zero_and_without_noise_undefined() -> None:
    assert signal_to_noise(Aggregate(torch.zeros(100), 5, 1.0)) == 0.0
    assert signal_to_noise(Aggregate(torch.ones(100), 5, 0.0)) is None


def test_a_strategy_runs_under_flowers_own_loop(make_strategy: MakeStrategy) -> None:
    """The same rounds by hand and by `start()`, which also hands over the initial model."""
    overrides = ("privacy.randomness=seeded", "clients.per_round=4", "seed=2")
    flower, by_hand = make_strategy(*overrides), make_strategy(*overrides)
    initial = copy.deepcopy(coordinator_of(flower).arrays())
    flower.model.vector.zero_()
    result = coordinator_of(flower).start(LocalGrid(app, 6), initial, num_rounds=3)
    grid = LocalGrid(app, 6)
    for round in (1, 2, 3):
        coordinator_of(by_hand).aggregate_train(
            round, grid.send_and_receive(_ask(by_hand, grid, round))
        )
    ended = result.arrays.to_torch_state_dict()
    assert ended.keys() == by_hand.model.module.state_dict().keys()
    for name, tensor in by_hand.model.module.state_dict().items():
        assert torch.equal(ended[name], tensor)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
    assert result.train_metrics_clientapp[3]["clients"] == 4


def _record(reply: Message, **entries: object) -> Message:
    reply.content["secagg"] = ConfigRecord(entries)  # type: ignore[arg-type]
    return reply


def test_without_masks_a_client_that_names_survivors_counts_as_one(
    make_strategy: MakeStrategy,
) -> None:
    """Only the grid of secure aggregation may say who is in a sum."""
    strategy = make_strategy("clients.tolerated_dropouts=0.5")
    messages = _numbered(_ask(strategy, LocalGrid(app, 6)))
    replies = _answer(messages[:3], 1.0, strategy.model.size)
    everybody = [message.metadata.dst_node_id for message in messages]
    _record(replies[0], survivors=everybody)
    coordinator_of(strategy).aggregate_train(1, replies)
    assert coordinator_of(strategy).arrived == 3
    assert coordinator_of(strategy).dropped.keys() == {3, 4, 5}
    with pytest.raises(RoundAborted, match="1 of 6 clients delivered, 3 are needed"):
        coordinator_of(strategy).aggregate_train(1, replies[:1])


@pytest.mark.parametrize("shape", [(20,), (22,), (1, 21), (0,), ()])
def test_a_vector_of_a_wrong_shape_is_a_dropout(
    make_strategy: MakeStrategy, shape: tuple[int, ...]
) -> None:
    strategy = make_strategy("clients.tolerated_dropouts=0.5")
    assert strategy.model.size == 21
    messages = _numbered(_ask(strategy, LocalGrid(app, 6)))
    replies = _answer(messages[:5], 1.0, 21)
    array = Array(np.ones(shape, dtype=np.float32))
    replies.append(_from(messages[5], RecordDict({"update": ArrayRecord({"sum": array})})))
    coordinator_of(strategy).aggregate_train(1, replies)
    assert coordinator_of(strategy).arrived == 5
    assert coordinator_of(strategy).dropped.keys() == {5}
    assert "instead of 21" in coordinator_of(strategy).dropped[5]
    assert str(shape) in coordinator_of(strategy).dropped[5]


def test_a_refusal_is_a_dropout_with_its_sentence(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy("clients.tolerated_dropouts=0.5")
    messages = _numbered(_ask(strategy, LocalGrid(app, 6)))
    replies = _answer(messages[:4], 1.0, strategy.model.size)
    replies.append(_record(_from(messages[4], RecordDict()), refusal="The budget is spent."))
    replies.append(_from(messages[5], RecordDict()))
    coordinator_of(strategy).aggregate_train(1, replies)
    assert coordinator_of(strategy).arrived == 4
    assert coordinator_of(strategy).dropped == {4: "The budget is spent.", 5: "sent no update"}


def test_a_reply_of_an_unknown_node_is_ignored(make_strategy: MakeStrategy) -> None:
    strategies = [
        make_strategy("clients.per_round=3", "seed=4", "privacy.randomness=seeded")
        for _ in range(2)
    ]
    for strategy, extra in zip(strategies, (False, True), strict=True):
        messages = _numbered(_ask(strategy, LocalGrid(app, 6)))
        replies = _answer(messages, 1.0, strategy.model.size)
        (stranger,) = _answer(messages[:1], 1e6, strategy.model.size)
        stranger.metadata.__dict__["_src_node_id"] = 12345
        coordinator_of(strategy).aggregate_train(1, [stranger, *replies] if extra else replies)
        assert (coordinator_of(strategy).arrived, coordinator_of(strategy).dropped) == (3, {})
    assert torch.equal(strategies[0].model.vector, strategies[1].model.vector)
