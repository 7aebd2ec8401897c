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

from secagg import Refusal

_HEAD = b'{"before":"'
_HASH_END = len(_HEAD) + 64
_FIRST = b"0" * 64


class Journal:
    """An opened, locked and checked file: its lines, and a way to add to them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read()
        self._size = data.rfind(b"\n") + 1
        if self._size < len(data):
            os.ftruncate(descriptor, self._size)
            os.fsync(descriptor)
        self.lines = data[: self._size].split(b"\n")[:-1]
        if not self.lines:
            raise Refusal("The ledger is empty, not even begun: restore it from a backup.")
        self._last = _end_of_chain(self.lines)

    def append(self, *entries: Mapping[str, Any]) -> None:
        """Add lines and sync them; if that fails, nothing was added."""
        added = []
        for entry in entries:
            line = json.dumps(
                {"before": self._last.decode(), **entry}, separators=(",", ":")
            ).encode()
            self._last = _hash(line)
            added.append(line)
        block = b"\n".join(added) + b"\n"
        try:
            if os.write(self._descriptor, block) < len(block):
                raise OSError("the disk is full")
            os.fsync(self._descriptor)
        except OSError as error:
            # The caller must not go on, so it does no harm if this fails too and the lines stay.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise Refusal(
                f"The ledger cannot be written ({error.strerror or error}): free the disk or mend its permissions."
            ) from error
        self._size += len(block)
        self.lines += added


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Journal]:
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
        yield Journal(descriptor)
    finally:
        os.close(descriptor)


def create(path: Path, first: Mapping[str, Any]) -> None:
    """A new file with its first line, readable by its owner alone; an existing one is left alone (FileExistsError)."""
    draft = path.with_name(path.name + ".new")
    line = json.dumps({"before": _FIRST.decode(), **first}, separators=(",", ":")) + "\n"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(line)
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


def _hash(line: bytes) -> bytes:
    return hashlib.sha256(line).hexdigest().encode()


def _end_of_chain(lines: list[bytes]) -> bytes:
    """The hash that the next line must carry. Lines are not parsed: this runs over the whole file for every message."""
    before = _FIRST
    for number, line in enumerate(lines, 1):
        if not line.startswith(_HEAD) or line[len(_HEAD) : _HASH_END] != before:
            raise Refusal(
                f"The ledger is damaged before or at line {number}: its chain of hashes is broken; restore it from a backup."
            )
        before = _hash(line)
    return before
