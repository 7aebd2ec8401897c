"""The ledger on disk: rules, budget, crashes, tampering, races, and agreement with a model in memory."""

import hashlib
import itertools
import json
import math
import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedsketch.client.guard.ledger
from fedsketch.client.guard.ledger import Ledger
from fedsketch.client.guard.ledger_file import hashed_line, own_hash
from fedsketch.client.guard.ledger_state import Budget, RoundId
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    NoSampling,
    Release,
    Skellam,
    Unit,
)
from fedsketch.secagg import Refusal

DELTA = 1e-5
ENDLESS = Budget(math.inf, DELTA, 10**9)


def release(honest: int = 10, unit: Unit = Unit.CLIENT) -> Release:
    mechanism = Skellam(honest * 1e7, 4096.0, 4096.0 * 20)
    return Release(mechanism, NoSampling(), Adjacency.ZERO_OUT, unit, Adversary.SERVER)


def epsilon(*releases: Release) -> float:
    accountant = Accountant(DELTA)
    for one in releases:
        accountant.record(one)
    return accountant.epsilon(tight=False).epsilon


def this(round: int, run: int = 7, digest: str = "d") -> RoundId:
    return RoundId(run, round, digest)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    new = Ledger(tmp_path / "ledger.jsonl")
    new.create()
    return new


def charged(ledger: Ledger, round: int, budget: Budget = ENDLESS, run: int = 7) -> None:
    ledger.admit(this(round, run), release(), budget)
    ledger.charge(this(round, run), release(), budget)


# ---------------------------------------------------------------------------- the course of a round


def test_a_round_is_charged_at_its_worst_case_and_settled_at_what_it_was(ledger: Ledger) -> None:
    charged(ledger, 1)
    assert ledger.state().spent(DELTA) == pytest.approx(epsilon(release(10)))
    ledger.endorse(this(1), "list")
    ledger.settle(this(1), "list", release(14), signed=True)
    assert ledger.state().spent(DELTA) == pytest.approx(epsilon(release(14)))
    assert epsilon(release(14)) < epsilon(release(10))


def test_a_charge_that_is_never_settled_stays_at_its_worst_case(ledger: Ledger) -> None:
    for number in range(1, 6):
        charged(ledger, number)
    ledger.settle(this(5), "list", release(14), signed=False)
    expected = epsilon(*[release(10)] * 4, release(14))
    assert Ledger(ledger.path).state().spent(DELTA) == pytest.approx(expected)


def test_a_server_that_only_opens_rounds_leaves_the_ledger_as_it_was(ledger: Ledger) -> None:
    """10,000 rounds in 100 runs, none of which goes on: no byte on the disk, and nothing spent."""
    charged(ledger, 1)
    before = ledger.path.read_bytes()
    for number in range(10_000):
        ledger.admit(this(2 + number // 100, run=7 + number % 100), release(), ENDLESS)
    assert ledger.path.read_bytes() == before
    assert ledger.state().spent(DELTA) == pytest.approx(epsilon(release()))


def test_rounds_are_charged_in_ascending_order(ledger: Ledger) -> None:
    """So that one number per run tells all rounds that can never be charged again."""
    charged(ledger, 5)
    for number in (4, 5):
        with pytest.raises(
            Refusal, match=f"Round {number} of run 7 is over: the vector of round 5"
        ):
            ledger.charge(this(number), release(), ENDLESS)
    charged(ledger, 6)


@pytest.mark.parametrize(
    ("prepare", "step", "sentence"),
    [
        (
            "c",
            lambda x: x.admit(this(1), release(), ENDLESS),
            "Round 1 of run 7 is over: the vector of round 1 has left this device.",
        ),
        ("c", lambda x: x.admit(this(0), release(), ENDLESS), "is over"),
        ("c", lambda x: x.charge(this(1), release(), ENDLESS), "is over"),
        ("c", lambda x: x.charge(this(1, digest="e"), release(), ENDLESS), "is over"),
        ("cs", lambda x: x.charge(this(1), release(), ENDLESS), "is over"),
        ("", lambda x: x.endorse(this(1), "list"), "it has ended or was never charged."),
        ("c", lambda x: x.endorse(this(1, run=8), "list"), "Round 1 of run 8 is not open"),
        ("c", lambda x: x.endorse(this(1, digest="e"), "list"), "was charged with other settings."),
        ("ce", lambda x: x.endorse(this(1), "list"), "has signed a survivor list of Round 1 of run 7 before."),
        ("ce", lambda x: x.endorse(this(1), "other"), "has signed a survivor list"),
        ("", lambda x: x.settle(this(1), "list", release(), signed=False), "it has ended or was never charged."),
        ("c", lambda x: x.settle(this(1), "list", release(), signed=True), "signed no such survivor list"),
        ("ce", lambda x: x.settle(this(1), "other", release(), signed=True), "signed no such survivor list"),
        ("cs", lambda x: x.settle(this(1), "list", release(), signed=False), "it has ended or was never charged."),
        ("c", lambda x: x.settle(this(1), "l", release(unit=Unit.EXAMPLE), signed=False), "set unit back."),
        ("c", lambda x: x.admit(this(2), release(unit=Unit.EXAMPLE), ENDLESS), "its policy now asks for each example"),
    ],
)  # fmt: skip
def test_a_step_out_of_order_is_refused_and_changes_nothing(
    ledger: Ledger, prepare: str, step: Callable[[Ledger], None], sentence: str
) -> None:
    steps: dict[str, Callable[[], None]] = {
        "c": lambda: ledger.charge(this(1), release(), ENDLESS),
        "e": lambda: ledger.endorse(this(1), "list"),
        "s": lambda: ledger.settle(this(1), "list", release(), signed=False),
    }
    for letter in prepare:
        steps[letter]()
    before = ledger.path.read_bytes()
    with pytest.raises(Refusal) as caught:
        step(ledger)
    assert sentence in str(caught.value)
    assert ledger.path.read_bytes() == before


def test_only_the_last_round_whose_vector_left_can_still_be_settled(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        charged(ledger, number)
    with pytest.raises(Refusal, match="Round 1 of run 7 is not open"):
        ledger.settle(this(1), "list", release(99), signed=False)
    ledger.settle(this(2), "list", release(12), signed=False)
    assert ledger.state().rounds == 3


def test_runs_count_their_rounds_apart_and_spend_together(ledger: Ledger) -> None:
    charged(ledger, 5, run=1)
    charged(ledger, 2, run=2)
    assert ledger.state().spent(DELTA) == pytest.approx(epsilon(release(), release()))


# ---------------------------------------------------------------------------- the budget


def test_a_charge_beyond_the_budget_is_refused_with_what_is_left(ledger: Ledger) -> None:
    budget = Budget(epsilon(*[release()] * 3), DELTA, 100)
    for number in (1, 2, 3):
        charged(ledger, number, budget)
    refused: list[Callable[[], None]] = [
        lambda: ledger.charge(this(4), release(), budget),
        lambda: ledger.admit(this(5), release(), budget),
    ]
    for step in refused:
        before = ledger.path.read_bytes()
        with pytest.raises(Refusal) as caught:
            step()
        assert ledger.path.read_bytes() == before
        assert "does not cover this round: it would bring epsilon to" in str(caught.value)
        assert str(caught.value).endswith("of which 0 is left.")
    assert ledger.state().rounds == 3


def test_settling_gives_back_what_was_charged_too_much(ledger: Ledger) -> None:
    budget = Budget(epsilon(release(10), release(40)), DELTA, 100)
    charged(ledger, 1, budget)
    with pytest.raises(Refusal, match="does not cover"):
        ledger.admit(this(2), release(), budget)
    ledger.settle(this(1), "list", release(40), signed=False)
    charged(ledger, 2, budget)


def test_the_number_of_rounds_is_bounded(ledger: Ledger) -> None:
    budget = Budget(math.inf, DELTA, 2)
    charged(ledger, 1, budget)
    charged(ledger, 2, budget)
    with pytest.raises(Refusal, match=r"taken part in 2 rounds, and its owner allows 2\."):
        ledger.admit(this(3), release(), budget)


def test_after_an_unmasked_reply_no_finite_budget_is_left(ledger: Ledger) -> None:
    ledger.note_unmasked("train")
    assert Ledger(ledger.path).state().spent(DELTA) == math.inf
    with pytest.raises(Refusal, match=r"bring epsilon to inf .* of which 0 is left"):
        ledger.admit(this(1), release(), Budget(1e6, DELTA, 10))
    ledger.admit(this(1), release(), ENDLESS)


def test_of_processes_that_race_for_the_last_budget_exactly_as_many_win_as_it_covers(
    ledger: Ledger,
) -> None:
    budget = Budget(epsilon(*[release()] * 3), DELTA, 100)
    fork = multiprocessing.get_context("fork")
    barrier, wins = fork.Barrier(8), fork.Queue()

    def race(run: int) -> None:
        barrier.wait()
        try:
            Ledger(ledger.path).charge(this(1, run), release(), budget)
            wins.put(True)
        except Refusal as refusal:
            wins.put("does not cover" not in str(refusal))
        wins.close()
        wins.join_thread()
        os._exit(0)

    racers = [fork.Process(target=race, args=(run,)) for run in range(8)]
    for racer in racers:
        racer.start()
    results = [wins.get(timeout=20) for _ in racers]
    for racer in racers:
        racer.join(timeout=20)
    assert sorted(results) == [False] * 5 + [True] * 3
    state, _ = ledger.verified()
    assert state.rounds == 3
    assert state.spent(DELTA) == pytest.approx(budget.epsilon)


# ---------------------------------------------------------------------------- the file


def test_the_file_is_its_owners_and_is_never_replaced(ledger: Ledger) -> None:
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    charged(ledger, 1)
    before = ledger.path.read_bytes()
    with pytest.raises(FileExistsError):
        ledger.create()
    assert ledger.path.read_bytes() == before
    assert sorted(p.name for p in ledger.path.parent.iterdir()) == ["ledger.jsonl"]


def test_every_line_is_json_and_names_its_kind_and_time(ledger: Ledger) -> None:
    charged(ledger, 1)
    ledger.endorse(this(1), "list")
    ledger.settle(this(1), "list", release(), signed=True)
    lines = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    kinds = ["begun", "charged", "endorsed", "settled"]
    assert [line["entry"] for line in lines] == kinds
    assert all(line["time"] for line in lines)


def test_a_line_is_synced_before_the_step_returns(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = os.fsync

    def spy(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    ledger.charge(this(1), release(), ENDLESS)
    assert sizes == [ledger.path.stat().st_size]


def test_a_half_written_last_line_is_dropped_wherever_it_was_cut(ledger: Ledger) -> None:
    charged(ledger, 1)
    whole = ledger.path.read_bytes()
    charged(ledger, 2)
    longer = ledger.path.read_bytes()
    for cut in range(len(whole) + 1, len(longer) - 1):
        ledger.path.write_bytes(longer[:cut])
        assert ledger.state().rounds == 1
        assert ledger.path.read_bytes() == whole
    # Blocks that the file system had promised but never written read as zeros.
    ledger.path.write_bytes(whole + bytes(4096))
    charged(ledger, 2)
    assert ledger.verified()[1] == 3


@pytest.mark.parametrize("ending", [b"", b"\x0b", b"J", b"\x00" * 4096])
def test_a_last_line_that_lacks_only_its_newline_counts(ledger: Ledger, ending: bytes) -> None:
    """Cut off or damaged: nobody can tell whether the vector has left, so it has."""
    charged(ledger, 1)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-1] + ending)
    assert ledger.state().rounds == 1
    assert ledger.path.read_bytes() == whole
    charged(ledger, 2)
    assert ledger.verified()[1] == 3


def test_an_acknowledged_line_is_never_dropped(ledger: Ledger) -> None:
    """Damage to a line that has its newline is refused, even if it is the last."""
    charged(ledger, 1)
    data = ledger.path.read_bytes()
    ledger.path.write_bytes(data[:-40] + b"\n")
    with pytest.raises(Refusal, match="The ledger is damaged before or at line 2"):
        ledger.state()


@pytest.mark.parametrize("sealed", [False, True])
def test_every_flipped_bit_is_refused_or_changes_nothing(
    ledger: Ledger, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every line: the first, one that is sealed, and the last, which no later line vouches for."""
    if sealed:
        monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_LINES", 3)
        monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_FACTOR", 1)
    charged(ledger, 1)
    ledger.endorse(this(1), "list")
    if sealed:
        ledger.note_unmasked("train.J*")  # one bit away from a newline
    ledger.settle(this(1), "list", release(14), signed=True)
    charged(ledger, 2)
    whole, right = ledger.path.read_bytes(), ledger.state()
    assert (b'"seal"' in whole) == sealed
    unnoticed = []
    with ledger.path.open("r+b", buffering=0) as file:
        for place, bit in itertools.product(range(len(whole)), range(8)):
            os.pwrite(file.fileno(), bytes([whole[place] ^ 1 << bit]), place)
            try:
                assert ledger.state() == right
                unnoticed.append(place)
            except Refusal:
                os.pwrite(file.fileno(), whole[place : place + 1], place)
    assert unnoticed == [len(whole) - 1] * 8  # the last newline, which was put back
    assert ledger.path.read_bytes() == whole  # no refusal has changed anything else


def test_a_ledger_of_the_format_before_is_refused_with_what_to_do(ledger: Ledger) -> None:
    old = {"before": "0" * 64, "entry": "begun", "time": "", "format": "fedsketch-ledger/1"}
    ledger.path.write_text(json.dumps(old, separators=(",", ":")) + "\n")
    with pytest.raises(
        Refusal, match=r"was begun by an older version, .*: go on with that version"
    ):
        ledger.state()


def tampered(lines: list[bytes], how: str) -> list[bytes]:
    changed = {
        "edit": [*lines[:2], lines[2].replace(b"4096.0", b"4097.0"), *lines[3:]],
        "remove": lines[:2] + lines[3:],
        "swap": [*lines[:2], lines[3], lines[2], *lines[4:]],
        "repeat": [*lines[:3], lines[2], *lines[3:]],
        "head": lines[1:],
        "garbage": [*lines[:2], b"\xff\xfe", *lines[3:]],
        "blank": [*lines[:2], b"", *lines[2:]],
    }
    return changed[how]


@pytest.mark.parametrize("how", ["edit", "remove", "swap", "repeat", "head", "garbage", "blank"])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_tampered_ledger_is_refused(
    ledger: Ledger, how: str, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sealed:
        monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_LINES", 4)
    for number in range(1, 9):
        charged(ledger, number)
    assert (b'"seal"' in ledger.path.read_bytes()) == sealed
    lines = ledger.path.read_bytes().splitlines()
    ledger.path.write_bytes(b"\n".join(tampered(lines, how)) + b"\n")
    before = ledger.path.read_bytes()
    for step in (
        ledger.state,
        ledger.verified,
        lambda: ledger.admit(this(99), release(), ENDLESS),
    ):
        with pytest.raises(Refusal, match="The ledger is damaged before"):
            step()
    assert ledger.path.read_bytes() == before


def relinked(entries: list[dict[str, Any]]) -> bytes:
    """A forged file whose hashes fit."""
    data, before = b"", "0" * 64
    for entry in entries:
        head = {"before": before}
        if "seal" in entry:
            head["seal"] = hashlib.sha256(data).hexdigest()
        facts = {k: value for k, value in entry.items() if k not in ("before", "seal", "hash")}
        line = hashed_line({**head, **facts})
        before = str(own_hash(line[:-1]))
        data += line
    return data


def test_lines_that_break_the_rules_are_refused_though_their_hashes_fit(ledger: Ledger) -> None:
    charged(ledger, 1)
    entries = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    ledger.path.write_bytes(relinked(entries))
    ledger.state()  # the forger's tool works
    for forged in (
        [*entries, entries[-1]],
        [*entries, {"entry": "unheard"}],
        [*entries, {"entry": "charged"}],
        [*entries[:1], {**entries[1], "release": {"mechanism": {"type": "Free"}}}],
        [{"entry": "begun", "format": "other/1"}, *entries[1:]],
        entries[1:],
    ):
        ledger.path.write_bytes(relinked(forged))
        with pytest.raises(Refusal, match="is not what fedsketch-ledger/2 allows there"):
            ledger.state()


def test_verifying_finds_totals_that_are_not_the_sum(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_LINES", 4)
    for number in range(1, 8):
        charged(ledger, number)
    entries = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    place = next(i for i, entry in enumerate(entries) if entry["entry"] == "totals")
    entries[place]["rounds"] = 0
    ledger.path.write_bytes(relinked(entries))
    with pytest.raises(Refusal, match=f"Line {place + 1} of the ledger holds wrong totals"):
        ledger.verified()


def test_a_missing_or_empty_ledger_is_refused_and_not_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(Refusal, match=r"ledger is missing: restore it .* fedsketch-enroll"):
        Ledger(path).admit(this(1), release(), ENDLESS)
    assert not path.exists()
    path.touch()
    with pytest.raises(Refusal, match="The ledger is empty, not even begun"):
        Ledger(path).admit(this(1), release(), ENDLESS)
    path.unlink()
    path.mkdir()
    with pytest.raises(Refusal, match="The ledger cannot be opened for writing"):
        Ledger(path).state()


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_full_disk_is_a_refusal_that_leaves_the_file_as_it_was(
    ledger: Ledger, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ledger.path.read_bytes()
    real = os.write

    def fail(descriptor: int, data: bytes = b"") -> int:
        if failing == "write":
            return real(descriptor, data[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(Refusal, match="The ledger cannot be written"):
            ledger.charge(this(1), release(), ENDLESS)
    assert ledger.path.read_bytes() == before
    charged(ledger, 1)


# ---------------------------------------------------------------------------- against a model

steps = st.tuples(
    st.sampled_from(
        ["several", "several", "admit", "charge", "endorse", "settle", "torn", "verify"]
    ),
    st.integers(1, 2),  # run
    st.integers(1, 6),  # round
    st.integers(10, 13),  # survivors
)


class Model:
    """The same rules, said once more and without any file."""

    def __init__(self) -> None:
        self.last = {1: 0, 2: 0}
        self.stage: dict[tuple[int, int], str] = {}
        self.cost: dict[tuple[int, int], Release] = {}

    def step(self, what: str, run: int, round: int, survivors: int) -> bool:
        key, stage = (run, round), self.stage.get((run, round))
        if what == "admit":
            return round > self.last[run]
        if what == "charge":
            if round <= self.last[run]:
                return False
            mine = [k for k in sorted(self.stage) if k[0] == run and self.stage[k] != "ended"]
            for k in mine[:-1]:
                self.stage[k] = "ended"
            self.last[run], self.stage[key], self.cost[key] = round, "charged", release(10)
        elif what == "endorse" and stage == "charged":
            self.stage[key] = "endorsed"
        elif what == "settle" and stage == "endorsed":
            self.stage[key], self.cost[key] = "ended", release(survivors)
        else:
            return False
        return True


def _take(path: Path, model: Model, what: str, run: int, round: int, survivors: int) -> None:
    """One step by a new process, of which model and ledger must say the same."""
    ledger, here = Ledger(path), this(round, run)
    call: dict[str, Callable[[], None]] = {
        "admit": lambda: ledger.admit(here, release(10), ENDLESS),
        "charge": lambda: ledger.charge(here, release(10), ENDLESS),
        "endorse": lambda: ledger.endorse(here, "list"),
        "settle": lambda: ledger.settle(here, "list", release(survivors), signed=True),
    }
    try:
        call[what]()
        went = True
    except Refusal:
        went = False
    assert went == model.step(what, run, round, survivors)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(script=st.lists(steps, max_size=25))
def test_any_sequence_of_steps_and_restarts_agrees_with_a_model_in_memory(
    script: list[tuple[str, int, int, int]],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_LINES", 5)
    monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_FACTOR", 1)
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    Ledger(path).create()
    model = Model()
    for what, run, round, survivors in script:
        if what == "torn":
            with path.open("ab") as file:
                file.write(path.read_bytes()[-survivors - 100 : -survivors].replace(b"\n", b""))
        elif what == "verify":
            Ledger(path).verified()
        elif what == "several":
            next_round = model.last[run] + 1
            for one in ("admit", "charge", "endorse", "settle")[: survivors - 9]:
                _take(path, model, one, run, next_round, survivors)
        else:
            _take(path, model, what, run, round, survivors)
    state, _ = Ledger(path).verified()
    assert Ledger(path).state() == state
    assert state.rounds == len(model.cost)
    assert state.spent(DELTA) == pytest.approx(epsilon(*model.cost.values()), rel=1e-12)
