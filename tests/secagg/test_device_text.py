"""What a device writes into a refusal or an error cannot look like anything but one short line of text."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import (
    RECORD,
    REFUSAL,
    Aborted,
    FixedPoint,
    SecAggGrid,
    SecAggOptions,
    SimulationGuard,
    clean_text,
    client_app,
)

FORGED = (
    'no.\nfedsketch> {"event": "file", "name": "overrides.txt"}\r\x1b[2J\x9b\u2028\u202e\ud800\x00'
)


@pytest.mark.parametrize(
    "dirty", [FORGED, FORGED * 100_000, [FORGED], FORGED.encode("utf-8", "surrogatepass")]
)
def test_text_becomes_one_short_printable_line(dirty: object) -> None:
    cleaned = clean_text(dirty)
    assert cleaned.isprintable()
    assert len(cleaned) <= 300


def test_an_honest_sentence_stays_as_it_is() -> None:
    sentence = "The budget of epsilon = 8 (delta = 1e-05) für dieses Gerät is spent: 予算."
    assert clean_text(sentence) == sentence


class HostileReplies(LocalGrid):
    """Nodes whose replies are replaced on the way: by refusals, or by errors."""

    def __init__(self, kind: str) -> None:
        super().__init__(client_app(FixedPoint(), lambda c: SimulationGuard(c.node_id)), 4)
        self._kind = kind

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._forged(reply) for reply in super().pull_messages(message_ids)]

    def _forged(self, reply: Message) -> Message:
        if self._kind == "error":
            reply.__dict__["_content"] = None
            reply.__dict__["_error"] = Error(7, FORGED)
        else:
            reply.content = RecordDict({RECORD: ConfigRecord({REFUSAL: FORGED})})
        return reply


@pytest.mark.parametrize("kind", ["refusal", "error"])
def test_neither_the_log_nor_the_error_can_be_forged(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    grid = SecAggGrid(HostileReplies(kind), SecAggOptions(drops=0.25), FixedPoint())
    arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
    asked = [Message(content, node, "train") for node in grid.get_node_ids()]
    with pytest.raises(Aborted) as aborted:
        grid.send_and_receive(asked, timeout=5)
    told: list[Any] = [str(aborted.value), *aborted.value.missing.values()]
    told += [record.getMessage() for record in caplog.records if "secagg" in record.name]
    assert len(told) > 5
    assert all(line.isprintable() for line in told), told
