"""Sends messages and polls for replies. Flower's own grids poll every three seconds, which is most of a short round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

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
