"""A Grid that puts the hash of the configuration into train messages, in the place of its text
(`delivery.settings_once`).

It lies above secure aggregation, which hashes what all devices get. The text is added below, for those who lack it.
"""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsketch.delivery.settings_once import SettingsOnce
from fedsketch.secagg import WrappedGrid, is_train
from fedsketch.strategies.rounds.codec import CONFIG, HEAD
from fedsketch.strategies.rounds.coordinator import Coordinator


class NamedSettingsGrid(WrappedGrid):
    """Passes messages on with the name of their configuration."""

    def __init__(self, grid: Grid, settings: SettingsOnce) -> None:
        super().__init__(grid)
        self._settings = settings

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        outgoing = list(messages)
        # All messages of a broadcast have the same content, and keep the same.
        contents = {id(m.content): m.content for m in outgoing if is_train(m)}
        travelling = {key: named(content, self._settings) for key, content in contents.items()}
        for message in outgoing:
            message.content = travelling.get(id(message.content), message.content)
        return self._grid.send_and_receive(outgoing, timeout=timeout)


def planned_broadcast(coordinator: Coordinator) -> RecordDict:
    """Return a broadcast as it travels to a device that has the configuration, for the plan."""
    return named(coordinator.planned_broadcast(), SettingsOnce())


def named(content: RecordDict, settings: SettingsOnce) -> RecordDict:
    """Return a broadcast with the name of its configuration instead of the text."""
    head = content.config_records[HEAD]
    name = settings.name(str(head[CONFIG]))
    return RecordDict({**content, HEAD: ConfigRecord({**head, CONFIG: name})})
