"""Bytes on the wire: a Grid around a Grid that measures every message as Flower serialises it."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class MeteredGrid(Grid):
    """Passes everything on, and counts the bytes sent down to nodes and up from them."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._down = self._up = 0
        self._sizes: dict[tuple[object, ...], int] = {}

    def take(self) -> tuple[int, int]:
        """Bytes (up, down) since the last call."""
        counted, self._up, self._down = (self._up, self._down), 0, 0
        return counted

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(self._sent(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._received(self._grid.pull_messages(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._received(self._grid.send_and_receive(self._sent(messages), timeout=timeout))

    def _sent(self, messages: Iterable[Message]) -> list[Message]:
        outgoing = list(messages)
        # A broadcast is one content for all: measure it once.
        by_content = {id(message.content): message for message in outgoing}
        sizes = {key: self._size(message) for key, message in by_content.items()}
        self._down += sum(sizes[id(message.content)] for message in outgoing)
        return outgoing

    def _received(self, messages: Iterable[Message]) -> list[Message]:
        incoming = list(messages)
        self._up += sum(self._size(message) for message in incoming)
        return incoming

    def _size(self, message: Message) -> int:
        if message.has_error():
            return len(message.deflate())
        # Serialising hashes every byte. The size depends on the shape only, so each shape is serialised once.
        shape = _shape(message.content)
        if shape not in self._sizes:
            self._sizes[shape] = serialised_size(message)
        return self._sizes[shape]

    # ------------------------------------------------------------------ plain delegation
    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()


def _shape(content: RecordDict) -> tuple[object, ...]:
    arrays = tuple(
        (name, key, array.dtype, tuple(array.shape), len(array.data))
        for name, record in content.array_records.items()
        for key, array in record.items()
    )
    others = [*content.config_records.items(), *content.metric_records.items()]
    return (*arrays, *((name, len(record.deflate())) for name, record in others))


def serialised_size(item: object) -> int:
    """The length of an object and of all that it refers to, as they travel."""
    children = (item.children or {}).values()  # type: ignore[attr-defined]
    return len(item.deflate()) + sum(map(serialised_size, children))  # type: ignore[attr-defined]
