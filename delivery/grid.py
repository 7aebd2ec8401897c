"""A Grid that adds to every train message its node's parcel (`delivery.parcels`), and sends the whole state to a node
that asks. The frozen part of a model (`delivery.frozen_part`) is such a state, whose parcels are empty.

It lies below secure aggregation. What all nodes have in common is hashed and signed above it; what a single node lacks
of the public state is added and removed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsketch.delivery.records import PARCEL, STALE
from fedsketch.secagg import WrappedGrid, is_train


class Delivered(Protocol):
    """What is delivered, in the server's version."""

    @property
    def version(self) -> int: ...

    def parcel(self, version: int) -> RecordDict:
        """Return the parcel for a node that has this version."""

    def whole(self) -> RecordDict:
        """Return the parcel for a node that asks."""


class DeliveryGrid(WrappedGrid):
    """Remembers which version each node has: the one with which it last answered, or version 0. Nodes ask in the record
    named `record`."""

    def __init__(self, grid: Grid, parcels: Delivered, record: str = PARCEL) -> None:
        super().__init__(grid)
        self._parcels = parcels
        self._record = record
        self._versions: dict[int, int] = {}
        # Train messages that were sent, and their version.
        self._sent: dict[str, tuple[Message, int]] = {}
        self._again: dict[str, str] = {}  # the second message that replaces a first one

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        outgoing = list(messages)
        identifiers = list(self._grid.push_messages([self._with_parcel(m) for m in outgoing]))
        for identifier, message in zip(identifiers, outgoing, strict=True):
            if identifier and is_train(message):
                self._sent[identifier] = (message, self._parcels.version)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        first_of = {self._again.get(first, first): first for first in message_ids}
        replies = []
        for reply in self._grid.pull_messages(list(first_of)):
            first = first_of.get(reply.metadata.reply_to_message_id)
            if first not in self._sent:
                replies.append(reply)
            elif self._asks(reply) and first not in self._again:
                (self._again[first],) = self._grid.push_messages(
                    [self._with_whole(self._sent[first][0])]
                )
            else:
                replies.append(self._answered(first, reply))
        return replies

    def _with_parcel(self, message: Message) -> Message:
        if not is_train(message):
            return message
        version = self._versions.get(message.metadata.dst_node_id, 0)
        return _with(message, self._parcels.parcel(version))

    def _with_whole(self, message: Message) -> Message:
        return _with(message, self._parcels.whole())

    def _asks(self, reply: Message) -> bool:
        return not reply.has_error() and STALE in reply.content.config_records.get(self._record, {})

    def _answered(self, first: str, reply: Message) -> Message:
        """Return a node's final reply, turned into a reply to the first message that it got."""
        message, version = self._sent.pop(first)
        self._again.pop(first, None)
        if not reply.has_error():
            self._versions[message.metadata.dst_node_id] = version
        # Flower has no public way to say which message a reply answers.
        reply.metadata.__dict__["_reply_to_message_id"] = first
        return reply


def _with(message: Message, parcel: RecordDict) -> Message:
    meta = message.metadata
    return Message(
        RecordDict({**message.content, **parcel}),
        meta.dst_node_id,
        meta.message_type,
        ttl=meta.ttl,
        group_id=meta.group_id,
    )
