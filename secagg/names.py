"""The names that stand in Flower's messages: of kinds of messages, of records, and of the entries in a record.

Both sides of the protocol use them, and so does whoever reads its replies or simulates them.
"""

from __future__ import annotations

from enum import StrEnum

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict


class ProtocolName(StrEnum):
    """How vectors are summed."""

    PAIRWISE = "pairwise"
    TWO_TRIPS = "two_trips"


# ---------------------------------------------------------------- kinds of messages
TRAIN = "train"
ACTION = "secagg_{}"  # the query actions: secagg_advertise, secagg_share, ...

# ---------------------------------------------------------------- records
RECORD = "secagg"
"""The protocol's own record. A device has one of the same name in its state."""
VECTOR_RECORD = "secagg-vector"
"""The record of a long masked vector. A short one is in the protocol's own record."""
VECTOR = "vector"  # its only array
VECTOR_KIND = "secagg.packed"  # the type of that array: packed bits instead of numbers
MOST_IN_RECORD = 1 << 20
"""Bytes that are still put into a record of settings; more are an array, which costs 500 bytes more. Flower sends
records whole and arrays in pieces, and what is between server and node may refuse large requests."""

# ---------------------------------------------------------------- entries of the protocol's own record
BODY = "body"  # the bytes of the request or of the answer
REFUSAL = "refusal"
"""The sentence of a device that does not take the step."""
NEXT_STEP = "next-step"  # the step of the next round that is asked for with the same message
NEXT = "next"  # the bytes of its request or of its answer
NEXT_REFUSAL = "next-refusal"
STATE = "state"  # what a device remembers of rounds with pairwise masks
EPOCHS = "epochs"  # and of those in two trips
SURVIVORS = "survivors"
"""The nodes in a sum, in the reply that a strategy gets."""


def is_train(message: Message) -> bool:
    """Return whether the message asks a node to train, by a train handler of any name."""
    return message.metadata.message_type.split(".")[0] == TRAIN


def body_record(body: bytes) -> ConfigRecord:
    """Return the protocol's own record with a request or an answer."""
    return ConfigRecord({BODY: body})


def with_vector(answer: ConfigRecord, masked: bytes) -> RecordDict:
    """Return the content of the one reply that has a masked vector: in the answer, or beside it if it is long."""
    if len(masked) <= MOST_IN_RECORD:
        answer[BODY] = masked
        return RecordDict({RECORD: answer})
    packed = Array("uint8", (len(masked),), VECTOR_KIND, masked)
    return RecordDict({RECORD: answer, VECTOR_RECORD: ArrayRecord({VECTOR: packed})})


def vector_in(content: RecordDict) -> bytes | None:
    """Return the masked vector in a reply; None if there is none."""
    short = content.config_records.get(RECORD, ConfigRecord()).get(BODY)
    if isinstance(short, bytes):
        return short
    long = content.array_records.get(VECTOR_RECORD, ArrayRecord()).get(VECTOR)
    return None if long is None else long.data
