"""Secure aggregation end to end: Flower's FedAvg, unchanged, around a ClientApp in this process."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsketch.secagg import (
    Aborted,
    FixedPoint,
    ProtocolName,
    Refusal,
    SecAggGrid,
    SecAggOptions,
    SettingsError,
    SimulationGuard,
    SimulationRoster,
    client_app,
)
from fedsketch.secagg.broadcast import broadcast_hash
from fedsketch.secagg.pairwise.settings import PairwiseSettings

Open = Callable[[ClientApp, Iterable[int]], Any]
CODEC = FixedPoint(metrics=("loss",), weight_limit=1000, value_limit=100.0)
NODES = [2**63 + 9, 17, 40, 5, 123456789, 77, 300]


def make_app(guard: Callable[[Context], Any] = lambda c: SimulationGuard(c.node_id)) -> ClientApp:
    """Each node adds its partition to the model, with distinctive weights and losses."""
    app = client_app(CODEC, guard)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        part = int(context.node_config["partition-id"])
        arrays = message.content.array_records["arrays"]
        moved = ArrayRecord({k: Array(v.numpy() + part) for k, v in arrays.items()})
        metrics = MetricRecord({"num-examples": 100 + part, "loss": 0.5 + part, "secret": 4242.25})
        return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    @app.train("second")
    def second(message: Message, context: Context) -> Message:
        return train(message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def model() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros((3, 2), np.float32)), "b": Array(np.ones(4))})


def train_messages(nodes: Iterable[int], kind: str = "train") -> list[Message]:
    content = RecordDict({"arrays": model(), "config": ConfigRecord({"server-round": 1})})
    return [Message(content, node, kind) for node in nodes]


def plain_mean(parts: Iterable[int]) -> float:
    weights = np.array([100 + part for part in parts])
    return float(weights @ np.array(list(parts)) / weights.sum())


@pytest.mark.parametrize(
    ("plan", "round_trips"),
    [
        (SecAggOptions(), [5, 5, 5]),
        (SecAggOptions(consistency=False), [4, 4, 4]),
        (SecAggOptions(merged=True), [5, 3, 3]),
        (SecAggOptions(merged=True, consistency=False), [4, 2, 2]),
        (SecAggOptions(merged=True, groups=2, drops=0), [5, 3, 3]),
        (SecAggOptions(protocol=ProtocolName.TWO_TRIPS, drops=1), [3, 2, 2]),
        (SecAggOptions(protocol=ProtocolName.TWO_TRIPS, drops=0, groups=2), [3, 2, 2]),
        (SecAggOptions(protocol=None, drops=1, epoch_rounds=2), [3, 2, 2]),
    ],
)
def test_fedavg_unchanged(
    plan: SecAggOptions, round_trips: list[int], in_process_grid: Open
) -> None:
    inner = in_process_grid(make_app(), NODES)
    grid = SecAggGrid(inner, plan, CODEC, roster=SimulationRoster())
    seen: list[int] = []

    def count(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if grid.report is not None:
            seen.append(grid.report.round_trips)
        return MetricRecord()

    result = FedAvg().start(grid=grid, initial_arrays=model(), num_rounds=3, evaluate_fn=count)
    step = plain_mean(range(7))
    np.testing.assert_allclose(result.arrays["w"].numpy(), 3 * step, atol=1e-4)
    np.testing.assert_allclose(result.arrays["b"].numpy(), 1 + 3 * step, atol=1e-4)
    loss = result.train_metrics_clientapp[3]["loss"]
    assert loss == pytest.approx(0.5 + step, abs=1e-3)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(0.5)
    assert seen == round_trips


def test_the_result_equals_plain_fedavg(in_process_grid: Open) -> None:
    """The same handlers on the bare grid, with a guard that lets plain replies pass."""

    class Open_(SimulationGuard):
        def admit_unmasked(self, message_type: str) -> None:
            """This owner does not mind."""

    app = make_app(lambda context: Open_(context.node_id))
    plain = FedAvg().start(grid=in_process_grid(app, NODES), initial_arrays=model(), num_rounds=2)
    secure = FedAvg().start(
        grid=SecAggGrid(in_process_grid(app, NODES), SecAggOptions(), CODEC),
        initial_arrays=model(),
        num_rounds=2,
    )
    for name in ("w", "b"):
        np.testing.assert_allclose(
            secure.arrays[name].numpy(), plain.arrays[name].numpy(), atol=1e-4
        )


def test_the_reply_tells_survivors_and_the_report_tells_reasons(
    in_process_grid: Open, caplog: pytest.LogCaptureFixture
) -> None:
    inner = in_process_grid(make_app(), NODES)
    dropped, failed = NODES[3], NODES[5]

    def failing(message: Message) -> Error | None:
        train = message.metadata.message_type == "train"
        if message.metadata.dst_node_id == dropped and train:
            return Error(5, "Node unavailable")  # comes from node 1, as Flower sends it
        if message.metadata.dst_node_id == failed and train:
            return Error(2, "ValueError: no\n data")
        return None

    inner.failing = failing
    grid = SecAggGrid(inner, SecAggOptions(drops=2), CODEC)
    with caplog.at_level(logging.WARNING, logger="secagg"):
        (reply,) = grid.send_and_receive(train_messages(NODES))
    told = reply.content["secagg"]
    survivors = sorted(set(NODES) - {dropped, failed})
    assert list(told["survivors"]) == survivors
    assert (told["cohort"], told["dropouts"], told["round"], told["group"]) == (7, 2, 1, 0)
    parts = [NODES.index(node) for node in survivors]
    np.testing.assert_allclose(reply.content["arrays"]["w"].numpy(), plain_mean(parts), atol=1e-4)
    assert grid.report is not None
    assert grid.report.dropouts == {
        dropped: "mask: error 5: Node unavailable",
        failed: "mask: error 2: ValueError: no data",
    }
    assert "Node unavailable" in caplog.text
    assert grid.report.survivors == [tuple(survivors)]
    assert set(grid.report.seconds) == {"advertise", "share", "mask", "sign", "unmask"}


def test_a_refusal_is_a_dropout_with_its_sentence(in_process_grid: Open) -> None:
    class Picky(SimulationGuard):
        def admit(self, settings: PairwiseSettings) -> None:
            raise Refusal("The cohort is too small for this owner.")

    app = make_app(
        lambda c: Picky(c.node_id) if c.node_id == NODES[0] else SimulationGuard(c.node_id)
    )
    grid = SecAggGrid(in_process_grid(app, NODES), SecAggOptions(drops=1), CODEC)
    list(grid.send_and_receive(train_messages(NODES)))
    assert grid.report is not None
    assert grid.report.dropouts == {NODES[0]: "advertise: The cohort is too small for this owner."}


def test_a_silent_node_is_a_dropout_after_the_timeout(in_process_grid: Open) -> None:
    inner = in_process_grid(make_app(), NODES)
    inner.silent = lambda message: message.metadata.dst_node_id == NODES[1]
    grid = SecAggGrid(inner, SecAggOptions(drops=1, stage_timeout=0.1, poll_interval=0.01), CODEC)
    list(grid.send_and_receive(train_messages(NODES), timeout=0.2))
    assert grid.report is not None
    assert grid.report.dropouts == {NODES[1]: "advertise: no answer in time"}


@pytest.mark.parametrize(("patience", "least", "longest"), [(0.0, 0.3, 10.0), (50.0, 30.0, 60.0)])
def test_late_nodes_are_not_waited_for_once_enough_have_answered(
    in_process_grid: Open,
    monkeypatch: pytest.MonkeyPatch,
    patience: float,
    least: float,
    longest: float,
) -> None:
    now = [0.0]
    monkeypatch.setattr("fedsketch.secagg.wrapped_grid.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "fedsketch.secagg.wrapped_grid.time.sleep", lambda _: now.__setitem__(0, now[0] + 0.1)
    )
    monkeypatch.setattr("fedsketch.secagg.wrapped_grid._LEAST_PATIENCE", least)
    inner = in_process_grid(make_app(), NODES)
    inner.silent = lambda message: message.metadata.dst_node_id == NODES[1]
    plan = SecAggOptions(drops=1, stage_timeout=60.0, patience=patience)
    grid = SecAggGrid(inner, plan, CODEC)
    list(grid.send_and_receive(train_messages(NODES)))
    assert grid.report is not None
    assert grid.report.dropouts == {NODES[1]: "advertise: no answer in time"}
    assert least <= now[0] <= longest


def test_nodes_are_waited_for_as_long_as_a_sum_needs_them(
    in_process_grid: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("fedsketch.secagg.wrapped_grid.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "fedsketch.secagg.wrapped_grid.time.sleep", lambda _: now.__setitem__(0, now[0] + 0.1)
    )
    inner = in_process_grid(make_app(), NODES)
    inner.silent = lambda message: message.metadata.dst_node_id == NODES[1]
    grid = SecAggGrid(inner, SecAggOptions(drops=0, stage_timeout=60.0, patience=0.0), CODEC)
    with pytest.raises(Aborted):
        list(grid.send_and_receive(train_messages(NODES)))
    assert now[0] >= 60.0


def test_too_many_failures_abort_with_names(in_process_grid: Open) -> None:
    inner = in_process_grid(make_app(), NODES)
    inner.failing = lambda m: (
        Error(2, "out of memory")
        if m.metadata.message_type == "train" and m.metadata.dst_node_id in NODES[:3]
        else None
    )
    grid = SecAggGrid(inner, SecAggOptions(drops=1), CODEC)
    with pytest.raises(Aborted, match="out of memory") as caught:
        grid.send_and_receive(train_messages(NODES))
    assert set(caught.value.missing) == set(NODES[:3])
    assert not any("sign" in m.metadata.message_type for m, _ in inner.log)
    inner.failing = lambda m: None
    assert len(list(grid.send_and_receive(train_messages(NODES)))) == 1


def test_nothing_travels_beside_the_vector(in_process_grid: Open) -> None:
    """Every reply, as bytes: no weight, no loss, no metric, no array of the handler."""
    inner = in_process_grid(make_app(), NODES)
    list(SecAggGrid(inner, SecAggOptions(), CODEC).send_and_receive(train_messages(NODES)))
    dim = 6 + 4 + 1 + 1
    for message, reply in inner.log:
        content = reply.content
        assert set(content) == {"secagg"}
        assert set(content["secagg"]) == {"body"}
        if message.metadata.message_type == "train":
            assert len(content["secagg"]["body"]) == 33 + 4 * dim
        raw = pickle.dumps([dict(record) for record in content.values()])
        for clue in (b"num-examples", b"loss", b"secret", np.float64(4242.25).tobytes()):
            assert clue not in raw


def test_a_plain_train_message_gets_no_update(in_process_grid: Open) -> None:
    inner = in_process_grid(make_app(), NODES)
    for kind in ("train", "train.second"):
        for reply in inner.send_and_receive(train_messages(NODES, kind)):
            assert set(reply.content) == {"secagg"}
            assert "without secure aggregation" in str(reply.content["secagg"]["refusal"])


@pytest.mark.parametrize("body", [b"", b"garbage", 7, None])
def test_a_broken_train_message_gets_no_update(body: Any, in_process_grid: Open) -> None:
    inner = in_process_grid(make_app(), NODES)
    (message,) = train_messages(NODES[:1])
    message.content["secagg"] = ConfigRecord({} if body is None else {"body": body})
    (reply,) = inner.send_and_receive([message])
    assert set(reply.content) == {"secagg"}
    assert set(reply.content["secagg"]) == {"refusal"}


def test_named_train_actions_and_groups(in_process_grid: Open) -> None:
    nodes = list(range(100, 130))
    grid = SecAggGrid(in_process_grid(make_app(), nodes), SecAggOptions(groups=3, drops=1), CODEC)
    replies = list(grid.send_and_receive(train_messages(nodes, "train.second")))
    assert len(replies) == 3
    seen: list[int] = []
    for number, reply in enumerate(replies):
        survivors = list(reply.content["secagg"]["survivors"])
        assert reply.content["secagg"]["group"] == number
        assert len(survivors) == 10
        parts = [nodes.index(node) for node in survivors]
        np.testing.assert_allclose(
            reply.content["arrays"]["w"].numpy(), plain_mean(parts), atol=1e-3
        )
        seen += survivors
    assert sorted(seen) == nodes


def test_fedavg_over_groups_is_fedavg_over_all(in_process_grid: Open) -> None:
    nodes = list(range(100, 120))
    grid = SecAggGrid(in_process_grid(make_app(), nodes), SecAggOptions(groups=4, drops=0), CODEC)
    result = FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=model(), num_rounds=1)
    np.testing.assert_allclose(result.arrays["w"].numpy(), plain_mean(range(20)), atol=1e-3)


def test_different_contents_are_refused(in_process_grid: Open) -> None:
    messages = train_messages(NODES)
    messages[2].content = RecordDict(
        {"arrays": model(), "config": ConfigRecord({"server-round": 2})}
    )
    grid = SecAggGrid(in_process_grid(make_app(), NODES), SecAggOptions(), CODEC)
    with pytest.raises(SettingsError, match="differ"):
        grid.send_and_receive(messages)
    with pytest.raises(SettingsError, match="one node"):
        grid.send_and_receive(train_messages([NODES[0], NODES[0]]))


def test_merged_rounds_follow_a_changing_cohort(in_process_grid: Open) -> None:
    inner = in_process_grid(make_app(), NODES)
    grid = SecAggGrid(inner, SecAggOptions(merged=True, drops=1), CODEC)
    cohorts = [NODES[:5], NODES[:5], NODES[2:], NODES[2:], NODES]
    round_trips = []
    for place, cohort in enumerate(cohorts):
        if place == 3:
            grid.expect(NODES)  # the round after the coming one
        (reply,) = grid.send_and_receive(train_messages(cohort))
        parts = [NODES.index(node) for node in cohort]
        np.testing.assert_allclose(
            reply.content["arrays"]["w"].numpy(), plain_mean(parts), atol=1e-4
        )
        assert grid.report is not None
        round_trips.append(grid.report.round_trips)
    assert round_trips == [5, 3, 5, 3, 3]
    grid.expect(None)
    list(grid.send_and_receive(train_messages(NODES)))
    list(grid.send_and_receive(train_messages(NODES)))
    assert grid.report is not None
    assert grid.report.round_trips == 5


def test_merged_rounds_survive_dropouts(in_process_grid: Open) -> None:
    """A node that misses one round is asked for keys of the next in time."""
    inner = in_process_grid(make_app(), NODES)
    grid = SecAggGrid(inner, SecAggOptions(merged=True, drops=1), CODEC)
    inner.failing = lambda m: (
        Error(2, "busy")
        if m.metadata.message_type == "train" and m.metadata.dst_node_id == NODES[0]
        else None
    )
    list(grid.send_and_receive(train_messages(NODES)))
    inner.failing = lambda m: None
    (reply,) = grid.send_and_receive(train_messages(NODES))
    assert grid.report is not None
    assert grid.report.round_trips == 3
    assert len(reply.content["secagg"]["survivors"]) == 7


def test_no_secret_stays_in_the_context_after_the_last_round(in_process_grid: Open) -> None:
    inner = in_process_grid(make_app(), NODES)
    list(SecAggGrid(inner, SecAggOptions(), CODEC).send_and_receive(train_messages(NODES)))
    for context in inner.contexts.values():
        assert len(context.state["secagg"]["state"]) < 20


def test_the_broadcast_hash_sees_every_change() -> None:
    def content(**changes: Any) -> RecordDict:
        values = {"lr": 0.1, "name": "x", "flag": True, "list": [1, 2], **changes}
        return RecordDict({"arrays": model(), "config": ConfigRecord(values)})

    base = broadcast_hash(content())
    assert base == broadcast_hash(content())
    with_record = content()
    with_record["secagg"] = ConfigRecord({"body": b"x"})
    assert broadcast_hash(with_record) == base
    shuffled = RecordDict(dict(reversed(list(content().items()))))
    assert broadcast_hash(shuffled) == base
    other_model = content()
    other_model["arrays"] = ArrayRecord(
        {"w": Array(np.zeros((3, 2), np.float32)), "b": Array(np.zeros(4))}
    )
    reordered = content()
    reordered["arrays"] = ArrayRecord({k: model()[k] for k in ("b", "w")})
    changed = [
        content(lr=0.2), content(name="y"), content(flag=1), content(list=[1]), content(list=1),
        content(more=b"x"), other_model, reordered,
        RecordDict({**dict(content()), "metrics": MetricRecord({"a": 1})}),
    ]  # fmt: skip
    assert len({base, *(broadcast_hash(c) for c in changed)}) == len(changed) + 1


def test_two_trips_go_on_without_nodes_that_fail(in_process_grid: Open) -> None:
    """One node fails while it trains, another while it answers; both are back in the next round."""
    inner = in_process_grid(make_app(), NODES)
    options = SecAggOptions(protocol=ProtocolName.TWO_TRIPS, drops=1, losses=1)
    grid = SecAggGrid(inner, options, CODEC)
    for failing, survivors in (({}, 7), ({"train": 17, "query.secagg_answer": 40}, 6), ({}, 7)):
        inner.failing = lambda message, failing=failing: (  # type: ignore[misc]
            Error(1, "gone")
            if failing.get(message.metadata.message_type) == message.metadata.dst_node_id
            else None
        )
        (reply,) = grid.send_and_receive(train_messages(NODES))
        nodes = list(reply.content["secagg"]["survivors"])  # type: ignore[call-overload, arg-type]
        assert len(nodes) == survivors
        assert set(grid.dropouts) == set(failing.values())
        mean = plain_mean([place for place, node in enumerate(NODES) if node in nodes])
        np.testing.assert_allclose(reply.content["arrays"]["w"].numpy(), mean, atol=1e-4)  # type: ignore[call-overload, union-attr]


def test_two_trips_refuse_plain_training_and_hide_what_they_sum(in_process_grid: Open) -> None:
    inner = in_process_grid(make_app(), NODES)
    grid = SecAggGrid(inner, SecAggOptions(protocol=ProtocolName.TWO_TRIPS, drops=1), CODEC)
    (reply,) = grid.send_and_receive(train_messages(NODES))
    assert "4242.25" not in str(reply.content)
    (plain,) = inner.send_and_receive(train_messages(NODES[:1]))
    assert "wrap the grid" in str(plain.content["secagg"]["refusal"])  # type: ignore[call-overload]
