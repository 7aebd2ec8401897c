"""An append-only file of JSON lines, each of which starts with the SHA-256 of the line before it.

Whoever opens it holds an exclusive lock until it is closed, so that reading, deciding and appending are one step however many
processes a device runs. An appended line is on the disk before `append` returns.

After a power cut the last line may be half written, without its newline. It is dropped, which is safe: `append` returns only after
newline and all have been synced, so whoever appended that line never went on, and nothing left the device because of it. Every
other damage (a changed, missing or foreign line) is refused and never repaired. The chain finds accidents and clumsy hands;
somebody who may write the file can also make a new chain, or put an older copy in its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsketch.secagg import Refusal

_HEAD = b'{"before":"'
_SEAL = b'","seal":"'
_FIRST = "0" * 64
_HASH = len(_FIRST)


class LedgerFile:
    """An opened, locked and checked file. `tail` are its lines from the last sealed one on, of which `first` is the number.

    A sealed line also holds the hash of everything before it, so that a long file is checked in one go.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read()
        self._data = data[: data.rfind(b"\n") + 1]
        if len(self._data) < len(data):
            os.ftruncate(descriptor, len(self._data))
            os.fsync(descriptor)
        if not self._data:
            raise Refusal("The ledger is empty, not even begun: restore it from a backup.")
        sealed = self._data.rfind(_SEAL)
        # A quotation mark within a text of JSON is escaped, so the seal's is where the line has it.
        start = 0 if sealed < 0 else self._data.rfind(b"\n", 0, sealed) + 1
        self.tail = self._data[start:].split(b"\n")[:-1]
        self.first = self._data.count(b"\n", 0, start) + 1
        before = _FIRST
        if start:
            before = _field(self.tail[0], _HEAD)
            if _field(self.tail[0], _HEAD + before.encode() + _SEAL) != _hash(self._data[:start]):
                raise Refusal(
                    f"The ledger is damaged before line {self.first}, which seals it: restore it from a backup."
                )
        self._last = _end_of_chain(self.tail, before, self.first)

    def lines(self) -> list[bytes]:
        """All lines, with every link of the chain checked."""
        lines = self._data.split(b"\n")[:-1]
        _end_of_chain(lines, _FIRST, 1)
        return lines

    def append(self, entry: Mapping[str, Any], sealed: Mapping[str, Any] | None = None) -> None:
        """Add a line, and a sealed one if there is any, and sync them; if that fails, nothing was added."""
        block = _line({"before": self._last, **entry})
        if sealed is not None:
            seal = _hash(self._data + block)
            block += _line({"before": _hash(block[:-1]), "seal": seal, **sealed})
        try:
            if os.write(self._descriptor, block) < len(block):
                raise OSError("the disk is full")
            os.fsync(self._descriptor)
        except OSError as error:
            # The caller must not go on, so it does no harm if this fails too and the lines stay.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, len(self._data))
            raise Refusal(
                f"The ledger cannot be written ({error.strerror or error}): free the disk or correct its permissions."
            ) from error


@contextlib.contextmanager
def opened(path: Path) -> Iterator[LedgerFile]:
    """The file, locked against all other processes until the block ends."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError:
        # A new one would forget what has been spent.
        raise Refusal(
            "This device's ledger is missing: restore it from a backup, or run fedsketch-enroll if this is a new device."
        ) from None
    except OSError as error:
        raise Refusal(f"The ledger cannot be opened for writing ({error.strerror}).") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield LedgerFile(descriptor)
    finally:
        os.close(descriptor)


def create(path: Path, first: Mapping[str, Any]) -> None:
    """A new file with its first line, readable by its owner alone; an existing one is left alone (FileExistsError)."""
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_line({"before": _FIRST, **first}))
        file.flush()
        os.fsync(file.fileno())
    # A link, unlike a rename, never replaces: a ledger appears whole or not at all.
    try:
        os.link(draft, path)
    finally:
        draft.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names of new files outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _field(line: bytes, head: bytes) -> str:
    """The hash after `head`; something that is no hash if the line does not start with it."""
    return (
        line[len(head) : len(head) + _HASH].decode(errors="replace")
        if line.startswith(head)
        else ""
    )


def _end_of_chain(lines: list[bytes], before: str, first: int) -> str:
    """The hash that the next line must carry."""
    for number, line in enumerate(lines, first):
        if _field(line, _HEAD) != before:
            raise Refusal(
                f"The ledger is damaged before or at line {number}: its chain of hashes is broken; restore it from a backup."
            )
        before = _hash(line)
    return before
