"""The rules and totals of a device's ledger, in memory: which line may follow which, and what everything together
costs.

The same methods process new lines and lines that are read from a file, so a file that breaks a rule is noticed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from fedsketch.client.guard.owners_refusal import BudgetSpent
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.release_json import release_from_json, release_to_json
from fedsketch.privacy.accounting.releases import Release
from fedsketch.secagg import Refusal


@dataclass(frozen=True)
class Budget:
    """What the owner allows over the device's life: epsilon at delta, and a number of rounds."""

    epsilon: float
    delta: float
    rounds: int


@dataclass(frozen=True)
class RoundId:
    """A round, identified by run and number, and the hash of its settings."""

    run: int
    round: int
    digest: str

    def __str__(self) -> str:
        return f"Round {self.round} of run {self.run}"

    def to_json(self) -> dict[str, Any]:
        return {"run": self.run, "round": self.round, "digest": self.digest}


@dataclass
class _Round:
    """A round whose vector has left, and which can still be settled or answered."""

    digest: str
    charged: Release
    survivors: str | None = None  # the one list that was signed, or answered
    key: str | None = None  # hash of the device's key of the epoch, in a round of two trips


@dataclass
class _Run:
    """The rounds of one run. `last` is the highest round whose vector has left; `rounds` are the open ones, in order;
    `context` is the digest of the last round of two trips whose vector has left."""

    last: int = -1
    rounds: dict[int, _Round] = field(default_factory=dict)
    context: str = ""


@dataclass
class LedgerState:
    """Open rounds by run, how often each release was made, the numbers of rounds charged, settled,
    answered in two trips, and answered without masks, and the name by which the ledger's witness knows it, if it has
    one."""

    runs: dict[int, _Run] = field(default_factory=dict)
    releases: dict[Release, int] = field(default_factory=dict)
    rounds: int = 0
    settled: int = 0
    answered: int = 0
    unmasked: int = 0
    witness: str = ""

    def spent(self, delta: float) -> float:
        """Return epsilon of everything that has left."""
        return math.inf if self.unmasked else self._accountant(delta).epsilon(tight=False).epsilon

    def check_budget(self, worst: Release, budget: Budget) -> None:
        """Refuse a release that would exceed the budget."""
        if self.rounds >= budget.rounds:
            raise BudgetSpent(
                f"This device has taken part in {self.rounds} rounds, and its owner allows {budget.rounds}."
            )
        for known in self.releases:
            _same_unit(known, worst)
        accountant = self._accountant(budget.delta)
        spent = math.inf if self.unmasked else accountant.epsilon(tight=False).epsilon
        accountant.record(worst)
        after = max(spent, accountant.epsilon(tight=False).epsilon)
        if after > budget.epsilon:
            left = max(0.0, budget.epsilon - spent)
            raise BudgetSpent(
                f"The privacy budget of this device does not cover this round: it would bring epsilon to {after:.4g} "
                f"at delta {budget.delta:g}; the owner allows {budget.epsilon:g}, of which {left:.4g} is left."
            )

    def check_new(self, this: RoundId) -> None:
        """Refuse a round if its vector, or that of a later round of the run, has left."""
        run = self.runs.get(this.run)
        if run is not None and this.round <= run.last:
            raise Refusal(f"{this} is over: the vector of round {run.last} has left this device.")

    def charge(self, this: RoundId, worst: Release, key: str | None = None) -> None:
        """Count a round; `key` makes it one of two trips, which stays at its worst case."""
        self.check_new(this)
        run = self.runs.setdefault(this.run, _Run())
        # As in the protocol's own state: of the earlier rounds, only the last may still end.
        earlier = list(run.rounds.items())[-1:]
        run.rounds = {**dict(earlier), this.round: _Round(this.digest, worst, key=key)}
        run.last = this.round
        if key is not None:
            run.context = this.digest
        self._add(worst, 1)
        self.rounds += 1

    def endorse(self, this: RoundId, survivors: str) -> None:
        current = self._signed(this)
        if current.survivors is not None:
            raise Refusal(f"This device has signed a survivor list of {this} before.")
        current.survivors = survivors

    def settle(self, this: RoundId, survivors: str, real: Release, signed: bool) -> None:
        current = self._signed(this)
        if signed and current.survivors != survivors:
            raise Refusal(f"This device signed no such survivor list of {this}.")
        _same_unit(current.charged, real)
        self._add(current.charged, -1)
        self._add(real, 1)
        self.settled += 1
        del self.runs[this.run].rounds[this.round]

    def answer(self, this: RoundId, survivors: str) -> bool:
        """Note the one list about which the device answers in a round of two trips; returns whether it is new."""
        current = self._open(this)
        if current.key is None:
            raise Refusal(f"{this} has no answers: its survivor list is signed.")
        if current.survivors not in (None, survivors):
            raise Refusal(f"This device has answered about another survivor list of {this}.")
        new = current.survivors is None
        current.survivors = survivors
        self.answered += new
        return new

    def last_context(self, run: int) -> str:
        """Return the digest of the last round of two trips whose vector has left in this run; empty if none has."""
        known = self.runs.get(run)
        return "" if known is None else known.context

    def replay(self, line: dict[str, Any]) -> None:
        """Process one line that was read from the file."""
        kind = line["entry"]
        if kind in ("begun", "totals"):
            return
        if kind == "unmasked":
            self.unmasked += 1
            return
        if kind == "witnessed":
            self.witness = str(line["witness"])
            return
        this = RoundId(line["run"], line["round"], line["digest"])
        if kind == "charged":
            self.charge(this, release_from_json(line["release"]), line.get("key"))
        elif kind == "endorsed":
            self.endorse(this, line["survivors"])
        elif kind == "answered":
            if not self.answer(this, line["survivors"]):
                raise ValueError("the same answer twice")
        elif kind == "settled":
            real = release_from_json(line["release"])
            self.settle(this, line["survivors"], real, line["signed"])
        else:
            raise ValueError(f"{kind!r} is not an entry of a ledger")

    def to_json(self) -> dict[str, Any]:
        return {
            **({"witness": self.witness} if self.witness else {}),
            "rounds": self.rounds,
            "settled": self.settled,
            **({"answered": self.answered} if self.answered else {}),
            "unmasked": self.unmasked,
            "releases": [
                [release_to_json(release), count] for release, count in self.releases.items()
            ],
            "runs": [self._run_to_json(number, run) for number, run in self.runs.items()],
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> LedgerState:
        made = cls(rounds=state["rounds"], settled=state["settled"], unmasked=state["unmasked"])
        made.answered = state.get("answered", 0)
        made.witness = str(state.get("witness", ""))
        made.releases = {release_from_json(data): count for data, count in state["releases"]}
        # What rounds of two trips add comes last, so that older totals are read as before.
        for number, last, rounds, *context in state["runs"]:
            made.runs[number] = _Run(last, {}, *context)
            for this, digest, charged, survivors, *key in rounds:
                release = release_from_json(charged)
                made.runs[number].rounds[this] = _Round(digest, release, survivors, *key)
        return made

    @classmethod
    def _run_to_json(cls, number: int, run: _Run) -> list[Any]:
        rounds = [cls._round_to_json(at, one) for at, one in run.rounds.items()]
        return [number, run.last, rounds, *([run.context] if run.context else [])]

    @staticmethod
    def _round_to_json(number: int, one: _Round) -> list[Any]:
        key = [] if one.key is None else [one.key]
        return [number, one.digest, release_to_json(one.charged), one.survivors, *key]

    def _accountant(self, delta: float) -> Accountant:
        accountant = Accountant(delta)
        for release, count in self.releases.items():
            accountant.record(release, count)
        return accountant

    def _add(self, release: Release, count: int) -> None:
        self.releases[release] = self.releases.get(release, 0) + count
        if not self.releases[release]:
            del self.releases[release]

    def _signed(self, this: RoundId) -> _Round:
        current = self._open(this)
        if current.key is not None:
            raise Refusal(f"{this} is one of two trips: it stays charged, and nothing is signed.")
        return current

    def _open(self, this: RoundId) -> _Round:
        run = self.runs.get(this.run)
        current = None if run is None else run.rounds.get(this.round)
        if current is None:
            raise Refusal(
                f"{this} is not open in this device's ledger: it has ended or was never charged."
            )
        if current.digest != this.digest:
            raise Refusal(f"{this} was charged with other settings.")
        return current


def _same_unit(known: Release, new: Release) -> None:
    if known.unit is not new.unit:
        raise Refusal(
            f"This device's ledger counts what protects each {known.unit}, its policy now asks for each {new.unit}: "
            "set unit back."
        )
