"""An append-only file of JSON lines. Each begins with the hash of the line before it, and ends with its own.

    {"before":"<hash of the line before>", ... ,"hash":"<SHA-256 of everything before it in this line>"}

Whoever opens the file holds an exclusive lock until it is closed, so that reading, deciding and appending are one step,
however many processes a device runs. An appended line is on the disk before `append` returns.

A changed, missing or foreign line is refused and never repaired. Only one thing is repaired: after a power cut the last
line may be incomplete. It is dropped, which is safe: `append` returns only after the line and its newline have been
synced, so whoever appended that line did not continue, and nothing left the device because of it. A last line whose
newline was damaged later looks similar, and must not be dropped. So a line counts as incomplete only if its own hash is
missing or wrong. A complete line is kept, and gets its newline. In the worst case a step is counted that was never
taken, which is on the safe side.

So a change of any single bit is found or changes nothing. More damage at the very end can look like a power cut. And
the hashes detect accidents only: somebody who may write to the file can also compute new hashes, or restore an older
copy.
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

from fedsketch.client.guard.owners_refusal import LedgerProblem

_HEAD = b'{"before":"'
_SEAL = b'","seal":"'
_OWN = b',"hash":"'
_OLD = b'"format":"fedsketch-ledger/1"}'
_FIRST = "0" * 64
_HASH = len(_FIRST)
RESTORE = "restore the newest backup, and lower epsilon by what was spent since then, which no backup knows"


class LedgerFile:
    """An open, locked and checked file. `tail` are its lines from the last sealed line on, whose number is `first`.

    A sealed line also holds the hash of everything before it, so that a long file is checked in one go.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read()
        end = _end_of_lines(data)
        self._data = data[:end] if data[:end].endswith(b"\n") or not end else data[:end] + b"\n"
        if not self._data:
            raise LedgerProblem(f"The ledger is empty, not even begun: {RESTORE}.")
        if self._data.partition(b"\n")[0].endswith(_OLD):
            raise LedgerProblem(
                "This device's ledger was begun by an older version, which wrote no hash to the end of a line: go on "
                "with that version, or begin a new device whose epsilon is lower by what that version's --show says "
                "was spent."
            )
        sealed = self._data.rfind(_SEAL)
        # A quotation mark inside of a JSON text is escaped, so the first match is the seal itself.
        start = 0 if sealed < 0 else self._data.rfind(b"\n", 0, sealed) + 1
        self.tail = self._data[start:].split(b"\n")[:-1]
        self.first = self._data.count(b"\n", 0, start) + 1
        before = _FIRST
        if start:
            before = _field(self.tail[0], _HEAD)
            if _field(self.tail[0], _HEAD + before.encode() + _SEAL) != _hash(self._data[:start]):
                raise LedgerProblem(
                    f"The ledger is damaged before line {self.first}, which seals it: {RESTORE}."
                )
        self._last = _end_of_chain(self.tail, before, self.first)
        if self._data != data:
            self._repair(end)

    def lines(self) -> list[bytes]:
        """Return all lines, after every hash of the chain has been checked."""
        lines = self._data.split(b"\n")[:-1]
        _end_of_chain(lines, _FIRST, 1)
        return lines

    @property
    def count(self) -> int:
        """The number of lines."""
        return self.first + len(self.tail) - 1

    @property
    def head(self) -> str:
        """The hash of the last line."""
        return self._last

    def head_before(self) -> tuple[int, str | None]:
        """Return number and hash of the line that was the last one before the last step, which may have appended a
        sealed line too."""
        lines = self._data[:-1].rsplit(b"\n", 3)[-3:]
        back = 2 if _SEAL in lines[-1] else 1
        return self.count - back, own_hash(lines[-1 - back]) if len(lines) > back else None

    def append(
        self, entry: Mapping[str, Any], sealed: Mapping[str, Any] | None = None
    ) -> tuple[int, str]:
        """Append a line, and a sealed one if given, and sync them; returns number and hash of the last line. If that
        fails, nothing was appended."""
        block = hashed_line({"before": self._last, **entry})
        if sealed is not None:
            seal, before = _hash(self._data + block), own_hash(block[:-1])
            block += hashed_line({"before": before, "seal": seal, **sealed})
        try:
            if os.write(self._descriptor, block) < len(block):
                raise OSError("the disk is full")
            os.fsync(self._descriptor)
        except OSError as error:
            # The caller must not continue, so it does no harm if this fails too and the lines stay.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, len(self._data))
            raise _unwritable(error) from error
        return self.count + block.count(b"\n"), str(own_hash(block[:-1].rpartition(b"\n")[2]))

    def _repair(self, end: int) -> None:
        """Cut off what follows the last complete line, and give that line its newline."""
        try:
            os.ftruncate(self._descriptor, end)
            os.write(self._descriptor, self._data[end:])
            os.fsync(self._descriptor)
        except OSError as error:
            raise _unwritable(error) from error


@contextlib.contextmanager
def opened(path: Path) -> Iterator[LedgerFile]:
    """Open the file, locked against all other processes until the block ends."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError:
        # A new ledger would forget what has been spent.
        raise LedgerProblem(
            f"This device's ledger is missing: {RESTORE}; or run fedsketch-enroll if this is a new device."
        ) from None
    except OSError as error:
        raise LedgerProblem(
            f"The ledger cannot be opened for writing ({error.strerror})."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield LedgerFile(descriptor)
    finally:
        os.close(descriptor)


def create(path: Path, first: Mapping[str, Any]) -> None:
    """Make a file with its first line, readable by its owner only. Raises FileExistsError if there is one."""
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(hashed_line({"before": _FIRST, **first}))
        file.flush()
        os.fsync(file.fileno())
    # A link, unlike a rename, never replaces a file. The ledger appears complete or not at all.
    try:
        os.link(draft, path)
    finally:
        draft.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names of new files survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hashed_line(entry: Mapping[str, Any]) -> bytes:
    """Return the entry as a line that ends with its own hash."""
    content = json.dumps(entry, separators=(",", ":")).encode()[:-1]
    return content + _OWN + _hash(content).encode() + b'"}\n'


def own_hash(line: bytes) -> str | None:
    """Return the hash at the end of a complete line, without its newline; None if it does not match the line."""
    content, _, stated = line.rpartition(_OWN)
    own = _hash(content)
    return own if stated == own.encode() + b'"}' else None


def _end_of_lines(data: bytes) -> int:
    """Return where the last complete line ends, whether its newline is there, missing, or damaged."""
    end = data.rfind(b"\n") + 1
    place = data.rfind(_OWN, end)
    stop = place + len(_OWN) + _HASH + 2
    return stop if place >= 0 and own_hash(data[end:stop]) else end


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _field(line: bytes, head: bytes) -> str:
    """Return the hash after `head`; something that is not a hash if the line does not start with `head`."""
    return (
        line[len(head) : len(head) + _HASH].decode(errors="replace")
        if line.startswith(head)
        else ""
    )


def _end_of_chain(lines: list[bytes], before: str, first: int) -> str:
    """Return the hash with which the next line must begin."""
    for number, line in enumerate(lines, first):
        own = own_hash(line)
        if own is None or _field(line, _HEAD) != before:
            raise LedgerProblem(
                f"The ledger is damaged before or at line {number}: its hashes do not fit; {RESTORE}."
            )
        before = own
    return before


def _unwritable(error: OSError) -> LedgerProblem:
    return LedgerProblem(
        f"The ledger cannot be written ({error.strerror or error}): free the disk or correct its permissions."
    )
