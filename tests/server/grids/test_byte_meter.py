"""Bytes are those of the whole serialised messages, counted once per receiver."""

from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsketch.runtime.local import LocalGrid
from fedsketch.server.grids.byte_meter import MeteredGrid

NODES = 140  # so that some node ids take one byte and some two

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    if context.node_id == 5:
        raise RuntimeError("this one always fails")
    size = 300 + context.node_id % 3
    vector = np.random.default_rng(context.node_id).standard_normal(size)
    content = {"v": ArrayRecord({"sum": Array(vector)}), "n": MetricRecord({"clients": 1})}
    return Message(RecordDict(content), reply_to=message)


@app.query("echo")
def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)


def _objects(item: object) -> dict[str, int]:
    """The lengths of an object and of all that it refers to; what is the same travels once in a message."""
    lengths = {item.object_id: len(item.deflate())}  # type: ignore[attr-defined]
    for child in (item.children or {}).values():  # type: ignore[attr-defined]
        lengths |= _objects(child)
    return lengths


def _bytes(messages: Iterable[Message]) -> int:
    return sum(sum(_objects(message).values()) for message in messages)


def _broadcast(content: RecordDict, nodes: Iterable[int], group: str = "1") -> list[Message]:
    return [Message(content, node, "train", group_id=group) for node in nodes]


def _content(size: int = 1000, text: str = "hello") -> RecordDict:
    vector = np.random.default_rng(size).standard_normal(size)
    arrays = ArrayRecord({"model": Array(vector)})
    return RecordDict({"a": arrays, "c": ConfigRecord({"text": text, "round": 3})})


@pytest.fixture
def grid() -> MeteredGrid:
    return MeteredGrid(LocalGrid(app, NODES))


def test_counts_exactly_the_serialised_bytes_in_both_directions(grid: MeteredGrid) -> None:
    messages = _broadcast(_content(), grid.get_node_ids())
    replies = list(grid.send_and_receive(messages))
    up, down = grid.take()
    assert down == _bytes(messages)
    assert up == _bytes(replies)


def test_every_receiver_of_a_broadcast_counts(grid: MeteredGrid) -> None:
    counts = []
    for receivers in (1, 10):
        list(grid.send_and_receive(_broadcast(_content(), range(10, 10 + receivers))))
        counts.append(grid.take())
    assert counts[1] == (pytest.approx(10 * counts[0][0], rel=0.01), 10 * counts[0][1])
    assert counts[0][1] > 8 * 1000  # the vector is in it


def test_an_error_reply_counts_as_what_it_is(grid: MeteredGrid) -> None:
    (reply,) = grid.send_and_receive(_broadcast(_content(), [5]))
    assert reply.has_error()
    assert grid.take()[0] == _bytes([reply])


def test_contents_of_all_sizes_types_and_rounds(grid: MeteredGrid) -> None:
    """Whatever is remembered between messages must not blur what the next one weighs."""
    for size, text, group in [
        (1000, "a", "1"),
        (1000, "bb", "10"),
        (999, "a", "1000"),
        (0, "", ""),
    ]:
        messages = _broadcast(_content(size, text), [2, 3, 139], group)
        messages.append(Message(_content(size, text), 4, "query.echo", group_id=group))
        replies = list(grid.send_and_receive(messages))
        assert grid.take() == (_bytes(replies), _bytes(messages))


VALUES = [0, 63, 64, -64, -65, 2**62, 2**64 - 1, True, 0.5, "", "a", "ä", b"", b"ab", b"ab" * 100]


def test_every_value_of_a_record_weighs_what_it_is_sent_as(grid: MeteredGrid) -> None:
    """One grid for all, which remembers the size of every shape."""
    for value in [*VALUES, *([one] for one in VALUES), *([one, one] for one in VALUES), []]:
        for key in ("x", "xyz"):
            content = RecordDict({"c": ConfigRecord({key: value})})  # type: ignore[dict-item]
            message = Message(content, 2, "query.echo")
            replies = list(grid.send_and_receive([message]))
            assert grid.take() == (_bytes(replies), _bytes([message])), value


def test_an_empty_record_is_told_from_none(grid: MeteredGrid) -> None:
    for records in ({}, {"a": ConfigRecord()}, {"abc": ConfigRecord()}, {"a": ArrayRecord()}):
        message = Message(RecordDict(dict(records)), 2, "query.echo")
        list(grid.send_and_receive([message]))
        assert grid.take()[1] == _bytes([message])


def test_taking_starts_the_count_anew(grid: MeteredGrid) -> None:
    list(grid.send_and_receive(_broadcast(_content(), [2])))
    assert grid.take() != (0, 0)
    assert grid.take() == (0, 0)


def test_push_and_pull_are_counted_too(grid: MeteredGrid) -> None:
    messages = _broadcast(_content(), [2, 3])
    ids = list(grid.push_messages(messages))
    assert grid.take() == (0, _bytes(messages))
    replies = list(grid.pull_messages(ids))
    assert grid.take() == (_bytes(replies), 0)


def test_messages_pass_unchanged(grid: MeteredGrid) -> None:
    content = _content()
    question = Message(content, 7, "query.echo")
    (reply,) = grid.send_and_receive([question])
    assert reply.content == content
    assert list(grid.get_node_ids()) == list(range(2, NODES + 2))
