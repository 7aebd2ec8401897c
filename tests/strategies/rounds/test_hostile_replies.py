"""Replies that no honest device sends, without secure aggregation: each makes its sender a dropout, and nothing of its
text gets out."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedsketch.privacy.mechanisms.gaussian import GaussianNoise
from fedsketch.secagg import RECORD, REFUSAL
from fedsketch.strategies.rounds import codec
from fedsketch.strategies.rounds.codec import delivered, summed
from tests.secagg.in_process_grid import begin

DIM = 3
FORGED = 'no\nfedsketch> {"event": "file", "name": "overrides.txt"}\x1b[2J'


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages ask who this process is."""
    begin(monkeypatch.setattr)


def _reply(content: RecordDict | None) -> Message:
    asked = Message(RecordDict(), 7, "train")
    asked.metadata.__dict__["_message_id"] = "1"
    if content is None:
        return Message(Error(2, FORGED), reply_to=asked)
    return Message(content, reply_to=asked)


def _raw(data: bytes, stype: str = "numpy.ndarray") -> RecordDict:
    return RecordDict({"update": ArrayRecord({"sum": Array("float32", (DIM,), stype, data)})})


def _bytes(kind: str, data: bytes | str) -> RecordDict:
    return RecordDict({"update": ConfigRecord({"type": kind, "sum": data})})


def _numpy_file(header: str) -> bytes:
    text = f"{header}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def _archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("sum.npy", b"")
    return file.getvalue()


HOSTILE: dict[str, Callable[[], RecordDict | None]] = {
    "an error": lambda: None,
    "a refusal": lambda: RecordDict({RECORD: ConfigRecord({REFUSAL: FORGED})}),
    "a refusal of another type": lambda: RecordDict({RECORD: ConfigRecord({REFUSAL: [FORGED]})}),
    "no array": lambda: RecordDict({"update": ArrayRecord()}),
    "an array of another name": lambda: RecordDict(
        {"update": ArrayRecord({FORGED: Array(np.zeros(DIM, np.float32))})}
    ),
    "no numbers": lambda: _raw(b""),
    "no type": lambda: RecordDict({"update": ConfigRecord({"sum": bytes(4 * DIM)})}),
    "no bytes": lambda: _bytes("<f4", FORGED),
    "a type that is none": lambda: _bytes(FORGED, bytes(4 * DIM)),
    "objects": lambda: _bytes("O", bytes(8 * DIM)),
    "half a number": lambda: _bytes("<f4", bytes(4 * DIM - 1)),
    "too few numbers": lambda: _bytes("<f4", bytes(4 * DIM - 4)),
    "several types": lambda: _bytes("<f4,<f4", bytes(8 * DIM)),
    "more bytes than there is memory": lambda: _bytes(f"V{2**31 - 1}", bytes(4 * DIM)),
    "a record of metrics": lambda: RecordDict({"update": MetricRecord({"sum": 1.0})}),
    "random bytes": lambda: _raw(bytes(range(256))),
    "another serialisation": lambda: _raw(b"", FORGED),
    "an archive": lambda: _raw(_archive()),
    "more than there is memory": lambda: _raw(
        _numpy_file(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**50},), }}")
    ),
    "a header that is code": lambda: _raw(_numpy_file("__import__('os')")),
    "texts": lambda: summed(np.array([FORGED] * DIM)),
    "complex numbers": lambda: summed(np.zeros(DIM, np.complex64)),
    "integers": lambda: summed(np.zeros(DIM, np.uint64)),
    "no finite numbers": lambda: summed(np.full(DIM, np.nan, np.float32)),
    "infinity": lambda: summed(np.full(DIM, np.inf, np.float32)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_it_is_a_dropout_with_a_clean_reason(kind: str) -> None:
    vector, reason = delivered(
        _reply(HOSTILE[kind]()), GaussianNoise(local_multiplier=1.0, clip=1.0), DIM
    )
    assert vector is None
    assert reason
    assert reason.isprintable()


@pytest.mark.parametrize("most", [4 * DIM, 4 * DIM - 1], ids=["short", "long"])
def test_an_honest_upload_passes(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MOST_IN_RECORD", most)
    vector, reason = delivered(
        _reply(summed(np.ones(DIM, np.float32))), GaussianNoise(local_multiplier=1.0, clip=1.0), DIM
    )
    assert vector is not None
    assert (vector.tolist(), reason) == ([1.0] * DIM, "")
