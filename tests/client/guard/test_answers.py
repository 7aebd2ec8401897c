"""Rounds of two trips in the ledger: one answer each, for ever, and a charge that stays at its worst case."""

import itertools
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import fedsketch.client.guard.ledger
from fedsketch.client.guard.ledger import Ledger
from fedsketch.client.guard.ledger_state import LedgerState
from fedsketch.client.guard.owners_refusal import LedgerProblem
from fedsketch.client.guard.witness import Witness
from fedsketch.secagg import Refusal
from tests.client.guard.charges import DELTA, ENDLESS, charged, epsilon, release, this
from tests.client.guard.test_ledger_file import relinked

KEY = "ab" * 32


def masked(ledger: Ledger, round: int, run: int = 7, digest: str = "d") -> None:
    """A round of two trips up to the vector."""
    ledger.charge(this(round, run, digest), release(), ENDLESS, KEY)


def kinds(ledger: Ledger) -> list[str]:
    return [json.loads(line)["entry"] for line in ledger.path.read_text().splitlines()]


def test_a_charge_names_the_key_of_the_epoch_and_an_answer_its_list(ledger: Ledger) -> None:
    masked(ledger, 1)
    ledger.answer(this(1), "list")
    lines = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    assert [line["entry"] for line in lines] == ["begun", "charged", "answered"]
    assert lines[1]["key"] == KEY
    assert lines[2]["survivors"] == "list"
    charged(ledger, 2)
    assert "key" not in json.loads(ledger.path.read_text().splitlines()[-1])


def test_an_answer_is_on_the_disk_before_it_leaves(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    masked(ledger, 1)
    sizes: list[int] = []
    real = os.fsync

    def spy(descriptor: int) -> None:
        real(descriptor)
        sizes.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", spy)
    ledger.answer(this(1), "list")
    assert sizes == [ledger.path.stat().st_size]


def test_the_same_list_is_answered_again_without_a_line_and_another_one_never(
    ledger: Ledger,
) -> None:
    masked(ledger, 1)
    ledger.answer(this(1), "list")
    before = ledger.path.read_bytes()
    for _ in range(3):
        Ledger(ledger.path).answer(this(1), "list")  # as after a restart
        with pytest.raises(Refusal, match="has answered about another survivor list of Round 1"):
            Ledger(ledger.path).answer(this(1), "other")
    assert ledger.path.read_bytes() == before
    for number in (2, 3):
        masked(ledger, number)
        with pytest.raises(Refusal):
            ledger.answer(this(1), "other")
    assert ledger.verified()[0].answered == 1


def test_a_round_of_two_trips_stays_charged_at_its_worst_case(ledger: Ledger) -> None:
    masked(ledger, 1)
    ledger.answer(this(1), "list")
    for signed in (False, True):
        with pytest.raises(Refusal, match="is one of two trips: it stays charged"):
            ledger.settle(this(1), "list", release(14), signed=signed)
    with pytest.raises(Refusal, match="is one of two trips"):
        ledger.endorse(this(1), "list")
    assert ledger.state().spent(DELTA) == pytest.approx(epsilon(release(10)))
    assert kinds(ledger) == ["begun", "charged", "answered"]


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (lambda x: x.answer(this(1), "l"), "it has ended or was never charged."),
        (lambda x: x.answer(this(2, run=8), "l"), "it has ended or was never charged."),
        (lambda x: x.answer(this(2, digest="e"), "l"), "was charged with other settings."),
        (lambda x: x.answer(this(3), "l"), "has no answers: its survivor list is signed."),
        (lambda x: masked(x, 2), "is over: the vector of round 3 has left"),
        (lambda x: masked(x, 3, digest="e"), "is over: the vector of round 3 has left"),
    ],
)
def test_a_step_out_of_order_is_refused_and_changes_nothing(
    ledger: Ledger, step: Callable[[Ledger], None], sentence: str
) -> None:
    masked(ledger, 2)
    charged(ledger, 3)
    before = ledger.path.read_bytes()
    with pytest.raises(Refusal) as caught:
        step(ledger)
    assert sentence in str(caught.value)
    assert ledger.path.read_bytes() == before


def test_the_last_context_is_that_of_two_trips_whatever_else_is_charged(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_LINES", 3)
    monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_FACTOR", 0)
    assert ledger.state().last_context(7) == ""
    masked(ledger, 1, digest="one")
    for number in range(2, 12):
        charged(ledger, number)
        ledger.endorse(this(number), "list")
        ledger.settle(this(number), "list", release(), signed=True)
        charged(ledger, number, run=8)
        assert ledger.state().last_context(7) == "one"
    assert ledger.state().last_context(8) == ""
    masked(ledger, 12, digest="two")
    assert Ledger(ledger.path).verified()[0].last_context(7) == "two"
    assert b'"seal"' in ledger.path.read_bytes()


def test_a_ledger_without_two_trips_has_the_totals_that_it_always_had(ledger: Ledger) -> None:
    """So that older ledgers are read, and the same lines are written."""
    charged(ledger, 1)
    ledger.endorse(this(1), "list")
    written = ledger.state().to_json()
    assert sorted(written) == ["releases", "rounds", "runs", "settled", "unmasked"]
    ((_, last, [[number, digest, _, survivors]]),) = written["runs"]
    assert (last, number, digest, survivors) == (1, 1, "d", "list")


def test_totals_carry_the_answers(ledger: Ledger) -> None:
    masked(ledger, 1, digest="one")
    charged(ledger, 2)
    masked(ledger, 3, digest="three")
    ledger.answer(this(3, digest="three"), "list")
    state = ledger.state()
    assert LedgerState.from_json(json.loads(json.dumps(state.to_json()))) == state


@pytest.mark.parametrize("same", [False, True])
def test_of_processes_that_answer_at_once_one_list_wins(ledger: Ledger, same: bool) -> None:
    masked(ledger, 1)
    fork = multiprocessing.get_context("fork")
    barrier, answered = fork.Barrier(8), fork.Queue()

    def race(number: int) -> None:
        barrier.wait()
        survivors = "list" if same else f"list {number}"
        try:
            Ledger(ledger.path).answer(this(1), survivors)
            answered.put(survivors)
        except Refusal:
            answered.put("")
        answered.close()
        answered.join_thread()
        os._exit(0)

    racers = [fork.Process(target=race, args=(number,)) for number in range(8)]
    for racer in racers:
        racer.start()
    results = [answered.get(timeout=20) for _ in racers]
    for racer in racers:
        racer.join(timeout=20)
    assert sorted(results)[:-1] == ["list"] * 7 if same else [""] * 7
    assert kinds(ledger) == ["begun", "charged", "answered"]
    assert ledger.verified()[0].answered == 1


def test_every_flipped_bit_of_an_answer_is_refused_or_changes_nothing(ledger: Ledger) -> None:
    charged(ledger, 1)
    masked(ledger, 2)
    ledger.answer(this(2), "list")
    whole, right = ledger.path.read_bytes(), ledger.state()
    start = whole.index(b'"charged"', whole.index(b'"charged"') + 1)
    unnoticed = []
    for place, bit in itertools.product(range(start, len(whole)), range(8)):
        ledger.path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :]
        )
        try:
            assert ledger.state() == right
            unnoticed.append(place)
        except Refusal:
            continue
    assert unnoticed == [len(whole) - 1] * 8  # the last newline, which was put back


def test_an_answer_that_was_half_written_has_not_left(ledger: Ledger) -> None:
    masked(ledger, 1)
    whole = ledger.path.read_bytes()
    ledger.answer(this(1), "list")
    longer = ledger.path.read_bytes()
    for cut in range(len(whole) + 1, len(longer) - 1, 7):
        ledger.path.write_bytes(longer[:cut])
        assert ledger.state().answered == 0
        assert ledger.path.read_bytes() == whole
    # Complete but for its newline: nobody can tell whether the answer has left, so it has.
    ledger.path.write_bytes(longer[:-1])
    with pytest.raises(Refusal, match="has answered about another survivor list"):
        ledger.answer(this(1), "other")


def test_forged_answers_are_refused_though_their_hashes_fit(ledger: Ledger) -> None:
    masked(ledger, 1)
    ledger.answer(this(1), "list")
    entries = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    begun, mask, answer = entries
    ledger.path.write_bytes(relinked(entries))
    ledger.state()  # the forger's tool works
    signed = {name: value for name, value in mask.items() if name != "key"}
    settled = {**mask, "entry": "settled", "survivors": "list", "signed": True}
    for forged in (
        [*entries, answer],
        [*entries, {**answer, "survivors": "other"}],
        [begun, answer],
        [begun, signed, answer],
        [*entries, settled],
        [*entries, {**settled, "signed": False}],
        [*entries, {**answer, "entry": "endorsed"}],
    ):
        ledger.path.write_bytes(relinked(forged))
        with pytest.raises(Refusal, match="is not what fedsketch-ledger/2 allows there"):
            ledger.state()


# ---------------------------------------------------------------------------- the witness


@pytest.fixture
def witnessed(ledger: Ledger, tmp_path: Path) -> Ledger:
    both = Ledger(ledger.path, tmp_path / "witness.jsonl")
    both.begin_witness()
    return both


def _answers(ledger: Ledger, backup: bytes) -> int:
    """Lists about which a device answers that is put back to where it had not answered yet."""
    answered = 0
    for number in range(4):
        ledger.path.write_bytes(backup)
        try:
            ledger.answer(this(1), f"list {number}")
            answered += 1
        except Refusal:
            continue
    return answered


def test_an_older_ledger_answers_again_and_with_a_witness_it_does_not(
    ledger: Ledger, tmp_path: Path
) -> None:
    """The attack: without a witness the copy is whole, and a second list is answered."""
    masked(ledger, 1)
    assert _answers(ledger, ledger.path.read_bytes()) == 4
    both = Ledger(ledger.path, tmp_path / "witness.jsonl")
    both.begin_witness()
    masked(both, 1, run=8)
    backup = both.path.read_bytes()
    both.answer(this(1, run=8), "list")
    both.path.write_bytes(backup)
    with pytest.raises(LedgerProblem, match="is not the one that its witness"):
        both.answer(this(1, run=8), "other")


def test_an_answer_whose_witness_was_cut_counts_and_reaches_the_witness_with_the_next(
    witnessed: Ledger,
) -> None:
    """The same list may be answered, and only once the witness knows of it."""
    assert witnessed.witness is not None
    masked(witnessed, 1)

    def cut(*_: object) -> None:
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Witness, "append", cut)
        for _ in range(2):
            with pytest.raises(InterruptedError):
                witnessed.answer(this(1), "list")
    assert witnessed.witness.last().lines == 3
    witnessed.answer(this(1), "list")
    assert witnessed.witness.last().lines == witnessed.verified()[1] == 4
    with pytest.raises(Refusal, match="has answered about another survivor list"):
        witnessed.answer(this(1), "other")
