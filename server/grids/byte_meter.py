"""Counts bytes: a Grid that measures every message in the form in which Flower serialises it."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedsketch.secagg import WrappedGrid


class MeteredGrid(WrappedGrid):
    """Passes everything on, and counts the bytes sent to nodes (down) and received from them (up)."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._down = self._up = 0
        self._sizes: dict[tuple[object, ...], int] = {}

    def take(self) -> tuple[int, int]:
        """Return bytes (up, down) since the last call."""
        counted, self._up, self._down = (self._up, self._down), 0, 0
        return counted

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(self._sent(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._received(self._grid.pull_messages(message_ids))

    def _sent(self, messages: Iterable[Message]) -> list[Message]:
        outgoing = list(messages)
        # All messages of a broadcast have the same content: measure it once.
        shapes = {id(message.content): content_shape(message.content) for message in outgoing}
        self._down += sum(self._size(message, shapes[id(message.content)]) for message in outgoing)
        return outgoing

    def _received(self, messages: Iterable[Message]) -> list[Message]:
        incoming = list(messages)
        for message in incoming:
            if message.has_error():
                self._up += serialised_size(message)
            else:
                self._up += self._size(message, content_shape(message.content))
        return incoming

    def _size(self, message: Message, shape: tuple[object, ...]) -> int:
        # Serialising hashes every byte. The size depends only on the shape of content and metadata, so each shape is
        # measured once.
        key = (*shape, *_lengths(message.metadata))
        if key not in self._sizes:
            self._sizes[key] = serialised_size(message)
        return self._sizes[key]


def content_shape(content: RecordDict) -> tuple[object, ...]:
    """Return what the size of a content depends on."""
    arrays = tuple(
        (name, key, array.dtype, tuple(array.shape), len(array.data))
        for name, record in content.array_records.items()
        for key, array in record.items()
    )
    others: list[tuple[str, ConfigRecord | MetricRecord]] = [
        *content.config_records.items(),
        *content.metric_records.items(),
    ]
    values = tuple(
        (name, key, *_value_shape(value))
        for name, record in others
        for key, value in record.items()
    )
    records = tuple((name, type(record)) for name, record in content.items())
    return (*records, *arrays, *values)


def _value_shape(value: object) -> tuple[object, ...]:
    """Return what the size of a value in a record depends on."""
    if isinstance(value, list):
        return (len(value), *(part for item in value for part in _value_shape(item)))
    if isinstance(value, int):  # sent in bytes of seven bits, the sign first
        return (type(value), (~value if value < 0 else value).bit_length())
    if isinstance(value, str):
        return (str, len(value.encode()))
    return (type(value), len(value) if isinstance(value, bytes) else 0)


def _lengths(metadata: Metadata) -> tuple[int, ...]:
    """Return the lengths of all metadata that vary: of texts their lengths, of numbers their bits."""
    texts = (
        metadata.message_id,
        metadata.reply_to_message_id,
        metadata.group_id,
        metadata.message_type,
    )
    ids = (metadata.run_id, metadata.src_node_id, metadata.dst_node_id)
    return (*map(len, texts), *(number.bit_length() for number in ids))


def serialised_size(item: object) -> int:
    """Return the size of an object and of all objects that it refers to, as they are sent."""
    children = (item.children or {}).values()  # type: ignore[attr-defined]
    return len(item.deflate()) + sum(map(serialised_size, children))  # type: ignore[attr-defined]
