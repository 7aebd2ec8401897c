"""The expected messages of a client are as long as those that a real round sends it and gets from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsketch.secagg import (
    FixedPoint,
    SecAggGrid,
    SecAggOptions,
    SettingsError,
    SimulationGuard,
    client_app,
    names,
    planned_traffic,
    vector_in,
)
from fedsketch.secagg.pairwise.messages import ADVERT_BYTES

Open = Callable[[ClientApp, Iterable[int]], Any]
CODEC = FixedPoint()


def _app() -> ClientApp:
    app = client_app(CODEC, lambda context: SimulationGuard(context.node_id))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 3})
        arrays = message.content.array_records["arrays"]
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def _broadcast() -> RecordDict:
    arrays = ArrayRecord({"w": Array(np.zeros((3, 2), np.float32)), "b": Array(np.ones(4))})
    return RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})


def _measured(content: RecordDict) -> dict[str, list[int]]:
    """The bytes of every record, as Flower serialises it and its arrays."""
    return {
        name: [len(one.deflate()) for one in (record, *(record.children or {}).values())]
        for name, record in content.items()
    }


def _real(inner: Any, options: SecAggOptions, n: int) -> dict[int, list[tuple[Any, Any]]]:
    """The sizes of the contents of every request and reply of a round, by node."""
    messages = [Message(_broadcast(), node, "train") for node in inner.get_node_ids()]
    list(SecAggGrid(inner, options, CODEC).send_and_receive(messages))
    sizes: dict[int, list[tuple[Any, Any]]] = {}
    for request, reply in inner.log:
        one = (_measured(request.content), _measured(reply.content))
        sizes.setdefault(request.metadata.dst_node_id, []).append(one)
    assert len(sizes) == n
    return sizes


def _expected(options: SecAggOptions, n: int) -> list[tuple[Any, Any]]:
    planned = planned_traffic(options, CODEC, _broadcast(), n).usual
    return [(_measured(one.request), _measured(one.reply)) for one in planned]


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (2, SecAggOptions(drops=0)),
        (9, SecAggOptions()),
        (20, SecAggOptions(drops=0.1, colluders=0.2)),
        (20, SecAggOptions(consistency=False)),
        (140, SecAggOptions(consistency=False, drops=0.05)),  # a ring
    ],
)
def test_every_client_sends_and_receives_what_is_expected(
    n: int, options: SecAggOptions, in_process_grid: Open
) -> None:
    expected = _expected(options, n)
    assert len(expected) == (5 if options.consistency else 4)
    real = _real(in_process_grid(_app(), range(100, 100 + n)), options, n)
    assert all(one == expected for one in real.values())


def test_a_long_vector_is_an_array_of_its_own(
    in_process_grid: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower sends arrays in pieces, and records whole."""
    vector = vector_in(planned_traffic(SecAggOptions(), CODEC, _broadcast(), 9).usual[2].reply)
    assert vector is not None
    monkeypatch.setattr(names, "MOST_IN_RECORD", len(vector))
    assert set(_expected(SecAggOptions(), 9)[2][1]) == {"secagg"}
    monkeypatch.setattr(names, "MOST_IN_RECORD", len(vector) - 1)
    expected = _expected(SecAggOptions(), 9)
    assert set(expected[2][1]) == {"secagg", "secagg-vector"}
    real = _real(in_process_grid(_app(), range(100, 109)), SecAggOptions(), 9)
    assert all(one == expected for one in real.values())


def test_with_groups_only_the_keys_of_other_groups_are_missing(in_process_grid: Open) -> None:
    n, options = 21, SecAggOptions(groups=3, drops=0)
    expected = _expected(options, n)
    for real in _real(in_process_grid(_app(), range(100, 100 + n)), options, n).values():
        first, (asked, replied), *rest = real
        assert [first, *rest] == [expected[0], *expected[2:]]
        assert replied == expected[1][1]
        (received,), (counted,) = asked["secagg"], expected[1][0]["secagg"]
        # Flower writes the length of a record in one to three bytes.
        assert received - counted == pytest.approx(14 * ADVERT_BYTES, abs=2)


def test_a_round_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingsError, match="At most 1024 clients"):
        planned_traffic(SecAggOptions(), CODEC, _broadcast(), 1030)


def test_the_vector_says_into_how_many_groups_the_cohort_is_divided() -> None:
    class Grouped(FixedPoint):
        def describe(self, broadcast: RecordDict, sizes: Any) -> Any:
            vector = super().describe(broadcast, sizes)
            return type(vector)(vector.dim, vector.bits, vector.application, groups=4)

    options = SecAggOptions(drops=0)
    grouped = planned_traffic(options, Grouped(), _broadcast(), 20).usual
    assert [(_measured(one.request), _measured(one.reply)) for one in grouped] == _expected(
        SecAggOptions(drops=0, groups=4), 20
    )
