"""Broadcasts survive the way through Flower's records and bytes unchanged."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from fedsketch.errors import ConfigError
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.rounds.messages import Broadcast, announced

MakeStrategy = Callable[..., Strategy]


def _broadcast(make_strategy: MakeStrategy, *overrides: str) -> Broadcast:
    strategy = make_strategy(*overrides)
    return Broadcast(
        config=strategy.config,
        round=12,
        mechanism=strategy.mechanism(12, strategy.config.clients.per_round),
        arrays={"model": strategy.model.vector, "extra": torch.arange(6).view(2, 3)},
        scalars={"rank": 3, "decay": 0.1, "name": "q", "flag": True, "seed": b"\x00\xff"},
    )


@pytest.mark.parametrize("overrides", [(), ("privacy=none",), ("strategy=fedavg",)])
def test_to_records_and_back_is_the_identity(
    make_strategy: MakeStrategy, overrides: tuple[str, ...]
) -> None:
    sent = _broadcast(make_strategy, *overrides)
    received = Broadcast.from_records(sent.to_records())
    assert received.config == sent.config
    assert received.round == sent.round
    assert received.mechanism == sent.mechanism
    assert dict(received.scalars) == dict(sent.scalars)
    assert received.arrays.keys() == sent.arrays.keys()
    for name, array in sent.arrays.items():
        assert torch.equal(received.arrays[name], array)
        assert received.arrays[name].dtype == array.dtype


def test_the_identity_holds_over_the_wire(make_strategy: MakeStrategy) -> None:
    sent = _broadcast(make_strategy)
    record = sent.to_records()
    children = {child.object_id: child for child in _descendants(record)}
    travelled = RecordDict.inflate(
        record.deflate(), children={c: children[c] for c in record.children}
    )
    received = Broadcast.from_records(travelled)
    assert (received.config, received.mechanism) == (sent.config, sent.mechanism)
    assert torch.equal(received.model, sent.model)


def _descendants(item: object) -> list[object]:
    children = list((item.children or {}).values())  # type: ignore[attr-defined]
    return children + [d for child in children for d in _descendants(child)]


def test_what_is_received_may_be_written_to_without_changing_the_message(
    make_strategy: MakeStrategy,
) -> None:
    records = _broadcast(make_strategy).to_records()
    before = np.array(records.array_records["arrays"]["model"].numpy())
    Broadcast.from_records(records).model.add_(1)
    assert np.array_equal(records.array_records["arrays"]["model"].numpy(), before)


def test_later_training_does_not_change_what_was_sent(make_strategy: MakeStrategy) -> None:
    sent = _broadcast(make_strategy)
    before = sent.model.clone()
    records = sent.to_records()
    sent.model.add_(1)
    assert torch.equal(Broadcast.from_records(records).model, before)


def test_a_broadcast_with_a_bad_configuration_is_refused(make_strategy: MakeStrategy) -> None:
    records = _broadcast(make_strategy).to_records()
    head = records.config_records["head"]
    head["config"] = str(head["config"]).replace('"seed":0', '"seed":-1')
    with pytest.raises(ConfigError, match="seed"):
        Broadcast.from_records(records)


def test_a_configuration_without_end_is_refused_before_it_is_read(
    make_strategy: MakeStrategy,
) -> None:
    """Reading it would take a device's time and memory before anything is charged."""
    records = _broadcast(make_strategy).to_records()
    head = records.config_records["head"]
    head["config"] = str(head["config"]) + " " * (1 << 16)
    with pytest.raises(ConfigError, match="more than 65,536 characters"):
        announced(records)


def test_broadcasts_cannot_be_changed(make_strategy: MakeStrategy) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        _broadcast(make_strategy).round = 1  # type: ignore[misc]
