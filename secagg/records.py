"""The bytes of the protocol as Flower's records."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from .names import BODY, RECORD, VECTOR, VECTOR_KIND, VECTOR_RECORD


def body_record(body: bytes) -> ConfigRecord:
    """Return the protocol's own record with a request or an answer."""
    return ConfigRecord({BODY: body})


def with_vector(answer: ConfigRecord, masked: bytes) -> RecordDict:
    """Return the content of the one reply that has a masked vector. The vector is outside of the protocol's record."""
    packed = Array("uint8", (len(masked),), VECTOR_KIND, masked)
    return RecordDict({RECORD: answer, VECTOR_RECORD: ArrayRecord({VECTOR: packed})})


def vector_in(content: RecordDict) -> bytes | None:
    """Return the masked vector in a reply; None if there is none."""
    vector = content.array_records.get(VECTOR_RECORD, ArrayRecord()).get(VECTOR)
    return None if vector is None else vector.data
