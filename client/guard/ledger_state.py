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
    """A round whose vector has left, and which can still be settled."""

    digest: str
    charged: Release
    endorsed: str | None = None


@dataclass
class _Run:
    """The rounds of one run. `last` is the highest round whose vector has left; `rounds` are the open ones, in
    order."""

    last: int = -1
    rounds: dict[int, _Round] = field(default_factory=dict)


@dataclass
class LedgerState:
    """Open rounds by run, how often each release was made, the numbers of rounds charged, settled, and answered without
    masks, and the name by which the ledger's witness knows it, if it has one."""

    runs: dict[int, _Run] = field(default_factory=dict)
    releases: dict[Release, int] = field(default_factory=dict)
    rounds: int = 0
    settled: int = 0
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

    def charge(self, this: RoundId, worst: Release) -> None:
        self.check_new(this)
        run = self.runs.setdefault(this.run, _Run())
        # As in the protocol's own state: of the earlier rounds, only the last may still end.
        earlier = list(run.rounds.items())[-1:]
        run.rounds = {**dict(earlier), this.round: _Round(this.digest, worst)}
        run.last = this.round
        self._add(worst, 1)
        self.rounds += 1

    def endorse(self, this: RoundId, survivors: str) -> None:
        current = self._open(this)
        if current.endorsed is not None:
            raise Refusal(f"This device has signed a survivor list of {this} before.")
        current.endorsed = survivors

    def settle(self, this: RoundId, survivors: str, real: Release, signed: bool) -> None:
        current = self._open(this)
        if signed and current.endorsed != survivors:
            raise Refusal(f"This device signed no such survivor list of {this}.")
        _same_unit(current.charged, real)
        self._add(current.charged, -1)
        self._add(real, 1)
        self.settled += 1
        del self.runs[this.run].rounds[this.round]

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
            self.charge(this, release_from_json(line["release"]))
        elif kind == "endorsed":
            self.endorse(this, line["survivors"])
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
            "unmasked": self.unmasked,
            "releases": [
                [release_to_json(release), count] for release, count in self.releases.items()
            ],
            "runs": [
                [number, run.last, [self._round_to_json(n, one) for n, one in run.rounds.items()]]
                for number, run in self.runs.items()
            ],
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> LedgerState:
        made = cls(rounds=state["rounds"], settled=state["settled"], unmasked=state["unmasked"])
        made.witness = str(state.get("witness", ""))
        made.releases = {release_from_json(data): count for data, count in state["releases"]}
        for number, last, rounds in state["runs"]:
            made.runs[number] = _Run(last)
            for this, digest, charged, endorsed in rounds:
                release = release_from_json(charged)
                made.runs[number].rounds[this] = _Round(digest, release, endorsed)
        return made

    @staticmethod
    def _round_to_json(number: int, one: _Round) -> list[Any]:
        return [number, one.digest, release_to_json(one.charged), one.endorsed]

    def _accountant(self, delta: float) -> Accountant:
        accountant = Accountant(delta)
        for release, count in self.releases.items():
            accountant.record(release, count)
        return accountant

    def _add(self, release: Release, count: int) -> None:
        self.releases[release] = self.releases.get(release, 0) + count
        if not self.releases[release]:
            del self.releases[release]

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
