"""A Grid around a Grid that passes everything on: the base of those that change something on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from .exchange import exchange


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
