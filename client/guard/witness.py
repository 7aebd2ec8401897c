"""The witness of a ledger: a file in a second place, which holds how long the ledger is, and the hash of its last line.

A ledger that is put back from a backup looks whole, and has forgotten what was spent since. The witness is kept where
that backup does not reach, for example on another disk, and an older ledger is refused.

Every step is written to the ledger first and then here, and both are synced before anything leaves. So no vector has
left whose charge the witness does not hold. If a device is stopped between the two, the witness is one step behind. The
next step brings it up to date first, so it is never further behind.

The file has a line for each step, the last one counts, and lines are only ever appended: a medium that allows nothing
else will do. Whoever may change both places, or puts both back, is not noticed.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from fedsketch.client.guard.ledger_file import hashed_line, own_hash, sync_folder
from fedsketch.client.guard.owners_refusal import LedgerProblem

_TAIL = 4096  # bytes from the end, in which the last lines are


@dataclass(frozen=True)
class Mark:
    """A state of a ledger: its number of lines, and the hash of the last one. `name` tells ledgers apart."""

    name: str
    lines: int
    head: str


class Witness:
    """The file. Whoever uses it holds the lock of the ledger."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begun(self) -> bool:
        """Whether the file is there and holds something."""
        return self.path.exists() and self.path.stat().st_size > 0

    def create(self, mark: Mark) -> None:
        """Begin the file, readable by its owner only."""
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600))
            self.append(mark)
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._problem(error) from error

    def append(self, mark: Mark) -> None:
        """Append a line and sync it."""
        line = hashed_line({"witness": mark.name, "lines": mark.lines, "head": mark.head})
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line  # after a power cut
                if os.write(descriptor, line) < len(line):
                    raise OSError("the disk is full")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._problem(error) from error

    def last(self) -> Mark:
        """Return what was written last. Lines that a power cut or a full disk left half written do not count: nothing
        left the device because of them."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                for start in (max(0, size - _TAIL), 0):
                    file.seek(start)
                    for line in reversed(file.read().split(b"\n")):
                        if own_hash(line):
                            return self._mark(line)
        except OSError as error:
            raise self._problem(error) from error
        raise self._damaged()

    def _mark(self, line: bytes) -> Mark:
        try:
            content = json.loads(line)
            return Mark(str(content["witness"]), int(content["lines"]), str(content["head"]))
        except (ValueError, KeyError, TypeError):
            raise self._damaged() from None

    def _damaged(self) -> LedgerProblem:
        return LedgerProblem(f"The witness {self.path} is empty or damaged: {RESET}.")

    def _problem(self, error: OSError) -> LedgerProblem:
        if isinstance(error, FileNotFoundError):
            return LedgerProblem(
                f"The witness {self.path} is not there: mount its disk, or bring the file back; if it is lost, {RESET}."
            )
        return LedgerProblem(
            f"The witness {self.path} cannot be used ({error.strerror or error}): free its disk or correct its "
            "permissions."
        )


RESET = (
    "call `fedsketch-enroll FOLDER --reset-witness`, after you have made sure that the ledger is the newest one, or "
    "have lowered epsilon by what was spent since"
)
