"""Every node gets what it lacks, and one that asks gets the whole, without secure aggregation above noticing."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsketch.delivery.grid import DeliveryGrid
from fedsketch.delivery.parcels import Parcels
from fedsketch.delivery.records import PARCEL, STALE
from fedsketch.runtime.local import LocalGrid


class _Parcels:
    """Says in a parcel what it is for."""

    version = 5

    def parcel(self, held: int) -> RecordDict:
        return RecordDict({PARCEL: ConfigRecord({"kind": "steps", "held": held})})

    def whole(self) -> RecordDict:
        return RecordDict({PARCEL: ConfigRecord({"kind": "whole"})})


def _setting(needy: Iterable[int]) -> tuple[DeliveryGrid, list[tuple[int, Any]], SimpleNamespace]:
    """A grid of three nodes, of which some take nothing but the whole; what came to whom; and the parcels."""
    app, seen, failing = ClientApp(), [], set[int]()
    state = SimpleNamespace(needy=set(needy), failing=failing)

    @app.train()
    def train(message: Message, context: Any) -> Message:
        parcel = message.content.config_records[PARCEL]
        seen.append((context.node_id, parcel.get("held", "whole")))
        if context.node_id in state.failing:
            raise RuntimeError("broken")
        answer = RecordDict({"self": ConfigRecord({"node": context.node_id})})
        if context.node_id in state.needy and parcel["kind"] != "whole":
            answer = RecordDict({PARCEL: ConfigRecord({STALE: "version 3 is not here"})})
        return Message(answer, reply_to=message)

    @app.query("hello")
    def hello(message: Message, context: Any) -> Message:
        assert PARCEL not in message.content
        return Message(RecordDict(), reply_to=message)

    state.parcels = _Parcels()
    return DeliveryGrid(LocalGrid(app, 3), cast(Parcels, state.parcels)), seen, state


def _messages(kind: str = "train") -> list[Message]:
    content = RecordDict({"common": ConfigRecord({"x": 1})})
    return [Message(content, node, kind, group_id="1", ttl=9.0) for node in (2, 3, 4)]


def _exchange(grid: DeliveryGrid, how: str, kind: str = "train") -> dict[int, Message]:
    """By node: one final reply each, to the message that was pushed."""
    if how == "at once":
        return {r.metadata.src_node_id: r for r in grid.send_and_receive(_messages(kind))}
    waiting = dict(zip(grid.push_messages(_messages(kind)), (2, 3, 4), strict=True))
    found: dict[int, Message] = {}
    for _ in range(2):
        for reply in grid.pull_messages(list(waiting)):
            found[waiting.pop(reply.metadata.reply_to_message_id)] = reply
    assert not waiting
    return found


@pytest.mark.parametrize("how", ["at once", "bit by bit"])
def test_a_node_that_asks_gets_the_whole_in_the_same_round(how: str) -> None:
    grid, seen, _ = _setting(needy=[3])
    replies = _exchange(grid, how)
    assert seen == [(2, 0), (3, 0), (4, 0), (3, "whole")]
    for node, reply in replies.items():
        assert reply.content.config_records["self"]["node"] == node


@pytest.mark.parametrize("how", ["at once", "bit by bit"])
def test_a_node_is_sent_what_came_after_its_last_answer(how: str) -> None:
    grid, seen, state = _setting(needy=[3])
    _exchange(grid, how)
    state.parcels.version = 6
    state.needy, state.failing = set(), {4}
    seen.clear()
    _exchange(grid, how)
    assert sorted(seen) == [(2, 5), (3, 5), (4, 5)]
    state.parcels.version, state.failing = 7, set()
    seen.clear()
    _exchange(grid, how)
    assert sorted(seen) == [(2, 6), (3, 6), (4, 5)]  # node 4 failed in between


@pytest.mark.parametrize("how", ["at once", "bit by bit"])
def test_other_messages_pass_as_they_are(how: str) -> None:
    grid, seen, _ = _setting(needy=[])
    assert len(_exchange(grid, how, "query.hello")) == 3
    assert seen == []


def test_the_content_that_all_share_is_left_as_it_was() -> None:
    grid, _, _ = _setting(needy=[3])
    messages = _messages()
    grid.send_and_receive(messages)
    assert list(messages[0].content) == ["common"]
