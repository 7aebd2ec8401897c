"""A Grid around a Grid that passes everything on: the base of those that change something on the way."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class WrappedGrid(Grid):
    """A Grid that passes everything on. Subclasses override what they change: `push_messages` and `pull_messages`, on
    which `send_and_receive` is built."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    # ------------------------------------------------------------------ what a round loop asks of every wrapped grid
    def expect(self, node_ids: Iterable[int] | None) -> None:
        """Say which nodes the round after the coming one has; None if there is none or it is unknown."""
        if isinstance(self._grid, WrappedGrid):
            self._grid.expect(node_ids)

    @property
    def dropouts(self) -> Mapping[int, str]:
        """The nodes that the last round lost, with the reason, as far as a grid knows more than that no reply came."""
        return self._grid.dropouts if isinstance(self._grid, WrappedGrid) else {}

    # ------------------------------------------------------------------ Flower's interface
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, and return their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come to messages with these ids."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and return the replies that come until the time is up."""
        return [reply for _, reply in exchange(self, list(messages), timeout)]

    def set_run(self, run: Any) -> None:
        """Say which run the messages belong to."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run that the messages belong to."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message of this run."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are connected."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Return what is known of the nodes that are connected."""
        return self._grid.get_nodes()


POLL_INTERVAL = 0.05  # seconds between the first polls for replies
_SLOWEST_POLL = 0.5  # longest time between polls: every poll costs the SuperLink CPU time
_PULL_AT_ONCE = 32
_LEAST_PATIENCE = 10.0  # seconds, because nodes poll for messages every few seconds


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float | None,
    *,
    enough: int | None = None,
    patience: float = 0.0,
    poll_interval: float = POLL_INTERVAL,
) -> Iterator[tuple[Message, Message]]:
    """Push messages and yield each with its reply as it arrives, until the time is up. Once `enough` replies have come
    without an error, wait for the others only `patience` times as long again (at least 10 s).

    Replies are matched by the message that they answer: the reply that the SuperLink writes for a lost node does not
    carry the node's id.
    """
    began = time.monotonic()
    waiting: dict[str, Message] = {}
    identifiers: list[Any] = list(grid.push_messages(messages))
    for place, message in enumerate(messages):
        identifier = message.metadata.message_id
        if len(identifiers) == len(messages):
            identifier = identifiers[place]  # None if the push failed
        if identifier:
            waiting[str(identifier)] = message
    deadline = None if timeout is None else began + timeout
    while waiting:
        open_ids, came = list(waiting), False
        # In small batches, so that only a few vectors are in memory at a time.
        for start in range(0, len(open_ids), _PULL_AT_ONCE):
            for reply in grid.pull_messages(open_ids[start : start + _PULL_AT_ONCE]):
                answered = waiting.pop(reply.metadata.reply_to_message_id, None)
                if answered is not None:
                    came = True
                    if enough is not None and not reply.has_error():
                        enough -= 1
                    yield answered, reply
        if enough is not None and enough <= 0:
            took = time.monotonic() - began
            last = began + took + max(_LEAST_PATIENCE, patience * took)
            deadline, enough = last if deadline is None else min(deadline, last), None
        if deadline is not None and time.monotonic() >= deadline:
            return
        if waiting and not came:
            waited = time.monotonic() - began
            time.sleep(max(poll_interval, min(_SLOWEST_POLL, waited / 10)))
