"""The in-process Grid: persistent contexts, errors as replies, and messages as everywhere else."""

import time

import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsketch.runtime.local import LocalGrid


@pytest.fixture
def app() -> ClientApp:
    client_app = ClientApp()

    @client_app.query("count")
    def count(message: Message, context: Context) -> Message:
        """How often this node was asked, by its own state."""
        before = context.state.metric_records.get("asked", MetricRecord({"times": 0}))
        asked = MetricRecord({"times": int(before["times"]) + 1})  # type: ignore[arg-type]
        context.state["asked"] = asked
        who = ConfigRecord({"node": context.node_id, "part": context.node_config["partition-id"]})
        return Message(RecordDict({"asked": asked, "who": who}), reply_to=message)

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_id == 3:
            raise ValueError("the data are gone")
        return Message(RecordDict(), reply_to=message)

    return client_app


def _asked(grid: LocalGrid, node: int) -> int:
    (reply,) = grid.send_and_receive([Message(RecordDict(), node, "query.count")])
    return int(reply.content.metric_records["asked"]["times"])  # type: ignore[arg-type]


def test_every_node_has_a_context_that_lasts(app: ClientApp) -> None:
    grid = LocalGrid(app, 3)
    assert [_asked(grid, 2) for _ in range(3)] == [1, 2, 3]
    assert _asked(grid, 4) == 1
    assert _asked(LocalGrid(app, 3), 2) == 1  # another grid, another run


def test_nodes_are_numbered_and_know_their_part(app: ClientApp) -> None:
    grid = LocalGrid(app, 4)
    nodes = list(grid.get_node_ids())
    assert len(set(nodes)) == 4
    replies = grid.send_and_receive([Message(RecordDict(), n, "query.count") for n in nodes])
    who = [dict(reply.content.config_records["who"]) for reply in replies]
    assert [w["node"] for w in who] == nodes
    assert [w["part"] for w in who] == [0, 1, 2, 3]


def test_replies_name_their_sender_and_their_question(app: ClientApp) -> None:
    grid = LocalGrid(app, 3)
    questions = [Message(RecordDict(), node, "query.count") for node in (4, 2)]
    replies = list(grid.send_and_receive(questions))
    assert [reply.metadata.src_node_id for reply in replies] == [4, 2]
    for question, reply in zip(questions, replies, strict=True):
        assert reply.metadata.reply_to_message_id == question.metadata.message_id != ""


def test_a_raising_handler_is_an_error_reply_and_nobody_elses_problem(app: ClientApp) -> None:
    replies = list(
        LocalGrid(app, 3).send_and_receive([Message(RecordDict(), n, "train") for n in (2, 3, 4)])
    )
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert replies[1].error.reason == "ValueError: the data are gone"
    assert replies[1].metadata.src_node_id == 3


def test_an_unknown_action_is_an_error_reply(app: ClientApp) -> None:
    (reply,) = LocalGrid(app, 2).send_and_receive([Message(RecordDict(), 2, "query.nonsense")])
    assert reply.has_error()


def test_messages_get_distinct_ids_and_only_those_asked_for_are_pulled(app: ClientApp) -> None:
    grid = LocalGrid(app, 3)
    first = list(grid.push_messages([Message(RecordDict(), n, "train") for n in (2, 4)]))
    second = list(grid.push_messages([Message(RecordDict(), 2, "query.count")]))
    assert len({*first, *second}) == 3
    (pulled,) = grid.pull_messages(second)
    assert pulled.metadata.message_type == "query.count"
    assert list(grid.pull_messages(second)) == []  # once
    assert list(grid.pull_messages(["unknown"])) == []
    assert len(list(grid.pull_messages(first))) == 2


def test_created_messages_are_flowers(app: ClientApp) -> None:
    grid = LocalGrid(app, 2)
    message = grid.create_message(RecordDict(), "query.count", 3, "7")
    assert (message.metadata.dst_node_id, message.metadata.group_id) == (3, "7")
    (reply,) = grid.send_and_receive([message])
    assert reply.has_content()


def test_who_takes_longer_than_the_timeout_is_lost(app: ClientApp) -> None:
    slow = {3: 0.3}

    def handle(message: Message, context: Context) -> Message:
        time.sleep(slow.get(context.node_id, 0))
        return app(message, context)

    grid = LocalGrid(handle, 3, timeout=0.2)  # type: ignore[arg-type]
    questions = [Message(RecordDict(), node, "query.count") for node in (2, 3, 4)]
    first, late, last = grid.send_and_receive(questions)
    assert first.has_content()
    assert last.has_content()
    assert "longer than clients.timeout=0.2" in late.error.reason
    assert late.metadata.src_node_id == 3
