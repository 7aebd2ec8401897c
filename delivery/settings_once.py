"""The configuration of a run travels to each device once, and rounds name it by its hash.

All devices of a round are told the hash, to which secure aggregation commits. The text comes in a record of its own,
with the first message to a device. The device remembers it in the state that Flower keeps for its node. A device that
has another text, or none, says so before anything is charged, and is sent the text again.
"""

from __future__ import annotations

import hashlib

from flwr.app import ConfigRecord, RecordDict

from fedsketch.delivery.records import SETTINGS, STALE

_TEXT = "text"


class SettingsOnce:
    """The text that the server sends. Its version is 0 as long as there is none."""

    def __init__(self) -> None:
        self.version = 0
        self._text: str | None = None

    def name(self, text: str) -> bytes:
        """Return the hash that stands for a text, which is sent from now on to those who do not have it."""
        if text != self._text:
            self._text, self.version = text, self.version + 1
        return _hash(text)

    def parcel(self, version: int) -> RecordDict:
        """Return the parcel for a device that has this version."""
        return RecordDict() if version == self.version else self.whole()

    def whole(self) -> RecordDict:
        """Return the parcel for a device that asks."""
        assert self._text is not None
        return _kept(self._text)


def text_named(name: bytes, parcel: RecordDict, state: RecordDict) -> str | None:
    """Return the text with this hash, from what came with a message or from what a device remembers; None if it is in
    neither."""
    for records in (parcel, state):
        text = records.config_records.get(SETTINGS, ConfigRecord()).get(_TEXT)
        if isinstance(text, str) and _hash(text) == name:
            return text
    return None


def remember(text: str, state: RecordDict) -> None:
    """Put the text into what a device remembers."""
    state[SETTINGS] = _kept(text)[SETTINGS]


def asks_for_the_settings() -> RecordDict:
    """Return the answer of a device that does not have the text."""
    return RecordDict({SETTINGS: ConfigRecord({STALE: "the configuration is not here"})})


def _kept(text: str) -> RecordDict:
    return RecordDict({SETTINGS: ConfigRecord({_TEXT: text})})


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
