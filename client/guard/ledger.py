"""The ledger: what a device has revealed to the server in its life, on its disk.

Every round whose vector leaves is recorded in steps. It is charged at its worst case before the vector leaves, endorsed
(with the one survivor list that was signed), and settled at what it really was. A round that is never settled stays
charged at its worst case. A round of two trips is charged together with the hash of the device's key of the epoch, and
answered (with the hash of the one list that the answer is about). It is never settled. The same list may be answered
again, another one never, whatever the rest of the device has forgotten.

In each run the charged rounds ascend, so none is charged twice. A round that was only opened has no line, because
otherwise a server that opens rounds for ever would fill the disk. Only fresh keys and shares of them have left for such
a round; they say nothing about the data, and each set of keys belongs to at most one vector.

Guarantee, against the server with as many colluding clients as each round assumed, for the unit named in the releases,
under zero-out adjacency, over all runs together: all vectors that left under masks cost no more than
`LedgerState.spent`, the Renyi composition of all charges and settlements. This holds in whatever order the server asks,
through restarts, and with any number of processes at once.

A ledger that is put back from a backup is whole, and forgets what was spent since. It is refused if the owner has named
a second place for a witness (`witness`).

The file is a chain of hashes (`ledger_file`), which is checked every time. Its meaning is read from the last sealed
line on, which holds totals; such a line is added from time to time. `verified` reads everything and compares all
totals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from fedsketch.client.guard import ledger_file
from fedsketch.client.guard.ledger_file import LedgerFile
from fedsketch.client.guard.ledger_state import Budget, LedgerState, RoundId
from fedsketch.client.guard.owners_refusal import LedgerProblem
from fedsketch.client.guard.witness import RESET, Mark, Witness
from fedsketch.privacy.accounting.release_json import release_to_json
from fedsketch.privacy.accounting.releases import Release
from fedsketch.secagg import Refusal

FORMAT = "fedsketch-ledger/2"
_TOTALS = "totals"
# Lines after which totals are written, and lines per item in them, so that totals stay the smaller part of the file.
_TAIL_LINES = 128
_TAIL_FACTOR = 2


class Ledger:
    """The ledger's file. Every method is one step under the lock, and a `Refusal` leaves the file as it was."""

    def __init__(self, path: Path, witness: Path | None = None) -> None:
        """`witness` is the file that the owner's policy names."""
        self.path = path
        self.witness = None if witness is None else Witness(witness)

    def create(self) -> None:
        """Begin a ledger; raises FileExistsError if there is one."""
        ledger_file.create(self.path, {"entry": "begun", "time": _now(), "format": FORMAT})

    def admit(self, this: RoundId, worst: Release, budget: Budget) -> None:
        """Check that the round is new, and that the budget covers its worst case. Nothing is written: no data have left
        yet."""
        state = self.state()
        state.check_new(this)
        state.check_budget(worst, budget)

    def charge(self, this: RoundId, worst: Release, budget: Budget, key: str | None = None) -> None:
        """Count the worst case. A round of two trips names the hash of the device's `key` of the epoch."""
        facts = {"release": release_to_json(worst), **({} if key is None else {"key": key})}
        with self._written("charged", {**this.to_json(), **facts}) as state:
            state.check_budget(worst, budget)
            state.charge(this, worst, key)

    def endorse(self, this: RoundId, survivors: str) -> None:
        with self._written("endorsed", {**this.to_json(), "survivors": survivors}) as state:
            state.endorse(this, survivors)

    def settle(self, this: RoundId, survivors: str, real: Release, *, signed: bool) -> None:
        """Replace the worst case by what really happened. `signed`: the survivor list must be the one that was
        endorsed."""
        facts = {"survivors": survivors, "signed": signed, "release": release_to_json(real)}
        with self._written("settled", {**this.to_json(), **facts}) as state:
            state.settle(this, survivors, real, signed)

    def answer(self, this: RoundId, survivors: str) -> None:
        """Record the one list about which the device answers in a round of two trips. The same list may come again."""
        with self._opened() as (opened, state):
            if state.answer(this, survivors):
                facts = {**this.to_json(), "survivors": survivors}
                self._append(opened, state, {"entry": "answered", "time": _now(), **facts})

    def note_unmasked(self, message_type: str) -> None:
        """Record that a reply leaves without masks and without any check. From now on no epsilon holds."""
        with self._written("unmasked", {"message": message_type}) as state:
            state.unmasked += 1

    def begin_witness(self) -> None:
        """Begin the witness that the policy names, if it names one and it is not yet begun."""
        if self.witness is None:
            return
        with ledger_file.opened(self.path) as opened:
            state = _read(opened)
            if state.witness:
                self._compare(opened, state)
                return
            mark = Mark(token_hex(16), opened.count, opened.head)
            if self.witness.begun():
                begun = self.witness.last()
                if (begun.lines, begun.head) != (opened.count, opened.head):
                    raise self._older(opened, begun)
                mark = begun  # this step was interrupted
            else:
                self.witness.create(mark)
            self._note_witness(opened, mark.name)

    def reset_witness(self) -> None:
        """Continue from the ledger as it is, with the witness that the policy names, or with none."""
        with ledger_file.opened(self.path) as opened:
            name = ""
            if self.witness is not None:
                mark = Mark(name := token_hex(16), opened.count, opened.head)
                (self.witness.append if self.witness.begun() else self.witness.create)(mark)
            self._note_witness(opened, name)

    def _note_witness(self, opened: LedgerFile, name: str) -> None:
        count, head = opened.append({"entry": "witnessed", "time": _now(), "witness": name})
        if self.witness is not None:
            self.witness.append(Mark(name, count, head))

    def state(self) -> LedgerState:
        with ledger_file.opened(self.path) as opened:
            state = _read(opened)
            self._compare(opened, state)
            return state

    def verified(self) -> tuple[LedgerState, int]:
        """Return the state, read from the first line with all totals compared, and the number of lines."""
        with ledger_file.opened(self.path) as opened:
            lines = opened.lines()
            state = LedgerState()
            for number, line in enumerate(lines, 1):
                entry = _replay(state, line, number)
                if entry["entry"] == _TOTALS and _totals_of(line, number) != state:
                    raise LedgerProblem(f"Line {number} of the ledger holds wrong totals.")
            self._compare(opened, state)
        return state, len(lines)

    @contextmanager
    def _written(self, kind: str, facts: dict[str, Any]) -> Iterator[LedgerState]:
        """Yield the current state. If the block does not refuse, the line is appended."""
        with self._opened() as (opened, state):
            yield state
            self._append(opened, state, {"entry": kind, "time": _now(), **facts})

    @contextmanager
    def _opened(self) -> Iterator[tuple[LedgerFile, LedgerState]]:
        """Yield the file and the current state, which the witness knows."""
        with ledger_file.opened(self.path) as opened:
            state = _read(opened)
            behind = self._compare(opened, state)
            if self.witness is not None and behind:
                self.witness.append(Mark(state.witness, opened.count, opened.head))
            yield opened, state

    def _append(self, opened: LedgerFile, state: LedgerState, line: dict[str, Any]) -> None:
        """Append a line, after which the state is this one, and tell the witness."""
        items = len(state.releases) + len(state.runs)
        full = len(opened.tail) > max(_TAIL_LINES, _TAIL_FACTOR * items)
        totals = {"entry": _TOTALS, **state.to_json()} if full else None
        count, head = opened.append(line, sealed=totals)
        if self.witness is not None:
            self.witness.append(Mark(state.witness, count, head))

    def _compare(self, opened: LedgerFile, state: LedgerState) -> bool:
        """Refuse a ledger that is not the one that its witness has seen; returns whether the witness is one step
        behind."""
        if self.witness is None:
            if state.witness:
                raise LedgerProblem(
                    "The ledger has a witness, and the policy names none: name its file again (witness = ...). To give "
                    f"it up, {RESET}."
                )
            return False
        if not state.witness and not self.witness.begun():
            raise LedgerProblem(
                f"The witness {self.witness.path} is not begun: call `fedsketch-enroll FOLDER`."
            )
        seen = self.witness.last()
        if state.witness == seen.name:
            if (seen.lines, seen.head) == (opened.count, opened.head):
                return False
            if (seen.lines, seen.head) == opened.head_before():
                return True
        raise self._older(opened, seen)

    def _older(self, opened: LedgerFile, seen: Mark) -> LedgerProblem:
        assert self.witness is not None
        return LedgerProblem(
            f"The ledger is not the one that its witness {self.witness.path} has seen: that one had {seen.lines} "
            f"lines, and this one has {opened.count}. If it was put back from a backup, put the newest one back; "
            f"otherwise {RESET}."
        )


def _read(opened: LedgerFile) -> LedgerState:
    """Return the state, read from the last totals on."""
    state, lines, number = LedgerState(), opened.tail, opened.first
    if number > 1:
        state, lines, number = _totals_of(lines[0], number), lines[1:], number + 1
    for line in lines:
        _replay(state, line, number)
        number += 1
    return state


def _totals_of(line: bytes, number: int) -> LedgerState:
    with _refusing_a_bad_line(number):
        return LedgerState.from_json(json.loads(line))


def _replay(state: LedgerState, line: bytes, number: int) -> dict[str, Any]:
    with _refusing_a_bad_line(number):
        entry: dict[str, Any] = json.loads(line)
        if number == 1 and (entry["entry"], entry["format"]) != ("begun", FORMAT):
            raise ValueError("not a ledger of ours")
        state.replay(entry)
    return entry


@contextmanager
def _refusing_a_bad_line(number: int) -> Iterator[None]:
    """Turn every problem with a line into a refusal of one sentence."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, Refusal) as error:
        raise LedgerProblem(
            f"Line {number} of the ledger is not what {FORMAT} allows there: {ledger_file.RESTORE}."
        ) from error


def _now() -> str:
    """Return the time as text, for people only: nothing depends on the clock."""
    return datetime.now(UTC).isoformat(timespec="seconds")
