"""A request to a client and its reply, as they travel."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import RecordDict

from .names import RECORD, body_record


@dataclass(frozen=True)
class RoundTrip:
    """The contents of a request to a client and of its reply."""

    request: RecordDict
    reply: RecordDict


def round_trip(request: bytes, reply: bytes) -> RoundTrip:
    """Return the round trip of a message that carries nothing but the protocol's own bytes."""
    asked, answered = body_record(request), body_record(reply)
    return RoundTrip(RecordDict({RECORD: asked}), RecordDict({RECORD: answered}))
