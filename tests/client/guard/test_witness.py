"""The second place that knows how long a ledger is: older copies are refused, and no crash locks an honest device
out."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fedsketch.client.guard.ledger
from fedsketch.client.enroll import enrol, main
from fedsketch.client.guard.ledger import Ledger
from fedsketch.client.guard.ledger_state import Budget
from fedsketch.client.guard.owners_refusal import LedgerProblem
from fedsketch.client.guard.policy import Policy
from fedsketch.client.guard.witness import Mark, Witness
from fedsketch.secagg import Refusal
from tests.client.guard.charges import DELTA, ENDLESS, charged, epsilon, release, this
from tests.client.guard.enrolled import Fleet, settings_of


class PowerCut(Exception):
    """Ends a step where the machine would have stopped."""


@pytest.fixture
def witnessed(ledger: Ledger, tmp_path: Path) -> Ledger:
    disk = tmp_path / "other disk"
    disk.mkdir()
    both = Ledger(ledger.path, disk / "witness.jsonl")
    both.begin_witness()
    return both


def _file(ledger: Ledger) -> Path:
    assert ledger.witness is not None
    return ledger.witness.path


@contextmanager
def _cut_before_the_witness() -> Iterator[None]:
    def cut(*_: object) -> None:
        raise PowerCut

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Witness, "append", cut)
        with pytest.raises(PowerCut):
            yield


def _vectors_that_leave(ledger: Ledger, budget: Budget) -> int:
    """Rounds until the device refuses, an old copy of the ledger put back whenever it does."""
    backup = ledger.path.with_name("backup")
    shutil.copy(ledger.path, backup)
    left = 0
    for run in range(3):
        for round in range(1, 100):
            try:
                charged(ledger, round, budget, run=run)
            except Refusal:
                break
            left += 1
        shutil.copy(backup, ledger.path)
    return left


def test_an_older_ledger_spends_the_budget_again(ledger: Ledger) -> None:
    """The attack. Without a witness nobody can notice it: the copy is whole."""
    budget = Budget(epsilon(*[release()] * 3), DELTA, 100)
    assert _vectors_that_leave(ledger, budget) == 9
    assert epsilon(*[release()] * 9) > 1.6 * budget.epsilon


def test_with_a_witness_it_is_refused(witnessed: Ledger) -> None:
    budget = Budget(epsilon(*[release()] * 3), DELTA, 100)
    assert _vectors_that_leave(witnessed, budget) == 3
    with pytest.raises(LedgerProblem, match=r"is not the one that its witness .* has seen"):
        witnessed.state()
    with pytest.raises(LedgerProblem, match="fedsketch-enroll FOLDER --reset-witness"):
        witnessed.verified()


def test_every_step_is_synced_to_the_ledger_and_then_to_the_witness(
    witnessed: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def spy(descriptor: int) -> None:
        synced.append(_name(descriptor, witnessed))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    steps: list[Callable[[], None]] = [
        lambda: witnessed.charge(this(1), release(), ENDLESS),
        lambda: witnessed.endorse(this(1), "list"),
        lambda: witnessed.settle(this(1), "list", release(), signed=True),
        lambda: witnessed.charge(this(2), release(), ENDLESS, "key"),
        lambda: witnessed.answer(this(2), "list"),
        lambda: witnessed.note_unmasked("train"),
    ]
    for step in steps:
        synced.clear()
        step()
        assert synced == ["ledger", "witness"]
        assert _last(witnessed) == witnessed.verified()[1]


def _name(descriptor: int, ledger: Ledger) -> str:
    opened = os.fstat(descriptor)
    files = {"ledger": ledger.path, "witness": _file(ledger)}
    return next(name for name, file in files.items() if os.path.samestat(opened, file.stat()))


def _last(ledger: Ledger) -> int:
    assert ledger.witness is not None
    return ledger.witness.last().lines


@pytest.mark.parametrize("sealed", [False, True])
def test_a_crash_between_the_two_locks_nobody_out(
    witnessed: Ledger, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The charge counts, the vector has not left, and the next round works. Twice in a row, too."""
    if sealed:
        monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_LINES", 0)
        monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_FACTOR", 0)
    for round in (1, 2):
        with _cut_before_the_witness():
            witnessed.charge(this(round), release(), ENDLESS)
        assert witnessed.state().rounds == 2 * round - 1
        charged(witnessed, round, run=8)
    assert witnessed.verified()[0].rounds == 4
    assert _last(witnessed) == witnessed.verified()[1]
    assert (b'"seal"' in witnessed.path.read_bytes()) == sealed


def test_while_the_witness_cannot_be_written_nothing_is_charged_twice(witnessed: Ledger) -> None:
    """The step that fails is charged, so the witness is one behind. Until it is not, nothing is appended."""
    charged(witnessed, 1)
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        here = _name(descriptor, witnessed) == "witness"
        return real(descriptor, data[:20] if here else data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in range(40):
            with pytest.raises(LedgerProblem, match=r"cannot be used .* free its disk"):
                witnessed.charge(this(2), release(), ENDLESS)
    assert witnessed.verified()[0].rounds == 2
    charged(witnessed, 3)


def test_a_half_written_line_of_the_witness_is_dropped_wherever_it_was_cut(
    witnessed: Ledger,
) -> None:
    charged(witnessed, 1)
    before = _file(witnessed).read_bytes()
    charged(witnessed, 2)
    whole, ledger = _file(witnessed).read_bytes(), witnessed.path.read_bytes()
    for end in range(len(before), len(whole), 7):
        _file(witnessed).write_bytes(whole[:end])
        witnessed.path.write_bytes(ledger)
        charged(witnessed, 3)
        assert _last(witnessed) == witnessed.verified()[1] == 5


def test_a_witness_that_is_not_there_is_refused_and_not_begun_anew(witnessed: Ledger) -> None:
    """As where its disk is not mounted, or somebody has erased it."""
    charged(witnessed, 1)
    before, kept = witnessed.path.read_bytes(), _file(witnessed).read_bytes()
    steps: list[Callable[[], object]] = [
        witnessed.state,
        witnessed.verified,
        witnessed.begin_witness,
        lambda: witnessed.admit(this(2), release(), ENDLESS),
        lambda: witnessed.charge(this(2), release(), ENDLESS),
    ]
    _file(witnessed).unlink()
    for step in steps:
        with pytest.raises(LedgerProblem, match="is not there: mount its disk"):
            step()
    assert not _file(witnessed).exists()
    _file(witnessed).touch()
    for step in steps:
        with pytest.raises(LedgerProblem, match="is empty or damaged"):
            step()
    assert witnessed.path.read_bytes() == before
    _file(witnessed).write_bytes(kept)
    charged(witnessed, 2)


def test_a_policy_that_no_longer_names_it_is_refused(witnessed: Ledger) -> None:
    without = Ledger(witnessed.path)
    for step in (without.state, without.verified, lambda: charged(without, 1)):
        with pytest.raises(
            LedgerProblem, match="The ledger has a witness, and the policy names none"
        ):
            step()
    without.reset_witness()  # the owner's decision
    charged(without, 1)


def test_a_ledger_from_before_its_witness_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    old = ledger.path.read_bytes()
    both = Ledger(ledger.path, tmp_path / "witness.jsonl")
    with pytest.raises(LedgerProblem, match="is not begun: call `fedsketch-enroll FOLDER`"):
        both.state()
    both.begin_witness()
    ledger.path.write_bytes(old)
    for step in (both.state, lambda: charged(both, 1)):
        with pytest.raises(LedgerProblem, match="is not the one that its witness"):
            step()


def test_other_ledgers_and_older_witnesses_are_refused(witnessed: Ledger, tmp_path: Path) -> None:
    fork = witnessed.path.read_bytes()
    charged(witnessed, 1)
    middle = _file(witnessed).read_bytes()
    longer = witnessed.path.read_bytes()
    charged(witnessed, 2)
    charged(witnessed, 3)
    whole, ledger = _file(witnessed).read_bytes(), witnessed.path.read_bytes()
    # As long as the right one, but another:
    witnessed.path.write_bytes(fork)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "_compare", lambda *_: False)
        for round in (4, 5, 6):
            charged(witnessed, round)
    _file(witnessed).write_bytes(whole)
    with pytest.raises(LedgerProblem):
        witnessed.state()
    # The witness is older by two steps:
    witnessed.path.write_bytes(ledger)
    _file(witnessed).write_bytes(middle)
    with pytest.raises(LedgerProblem):
        witnessed.state()
    # One of another device, however long:
    _file(witnessed).write_bytes(whole)
    witnessed.state()
    other = Ledger(tmp_path / "other.jsonl", _file(witnessed))
    other.create()
    with pytest.raises(LedgerProblem):
        other.begin_witness()
    other.path.write_bytes(longer)
    with pytest.raises(LedgerProblem):
        charged(other, 2)


def test_an_interrupted_beginning_is_continued(ledger: Ledger, tmp_path: Path) -> None:
    both = Ledger(ledger.path, tmp_path / "witness.jsonl")
    (tmp_path / "witness.jsonl").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "_note_witness", lambda *_: (_ for _ in ()).throw(PowerCut))
        with pytest.raises(PowerCut):
            both.begin_witness()
    with pytest.raises(LedgerProblem):
        charged(both, 1)
    both.begin_witness()
    charged(both, 1)
    both.begin_witness()
    assert both.verified()[1] == _last(both) == 3


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_honest_ledgers_continue_and_older_ones_do_not(
    witnessed: Ledger, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random steps, power cuts at each of the two files, and old copies: accepted if and only if no step that was
    acknowledged is missing."""
    monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_LINES", 3)
    monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_FACTOR", 0)
    choose, acknowledged = random.Random(seed), list[int]()
    copies: list[bytes] = []
    for run in range(1, 25):
        copies.append(witnessed.path.read_bytes())
        what = choose.choice(["step", "step", "cut before the witness", "cut inside of it", "old"])
        if what == "old":
            now, old = copies[-1], choose.choice(copies)
            witnessed.path.write_bytes(old)
            forgotten = [known for known in acknowledged if f'"run":{known},'.encode() not in old]
            try:
                charged(witnessed, 1, run=run)
                assert not forgotten
                acknowledged.append(run)
            except LedgerProblem:
                assert old != now
                witnessed.path.write_bytes(now)
        elif what == "cut before the witness":
            with _cut_before_the_witness():
                witnessed.charge(this(1, run), release(), ENDLESS)
        else:
            charged(witnessed, 1, run=run)
            whole = _file(witnessed).read_bytes()
            if what == "cut inside of it":
                start = whole[:-1].rindex(b"\n") + 1
                _file(witnessed).write_bytes(whole[: choose.randrange(start, len(whole) - 1)])
            else:
                acknowledged.append(run)
    witnessed.verified()


# ---------------------------------------------------------------------------- the device


def test_a_device_with_an_older_ledger_is_a_dropout_and_tells_nobody_why(
    make_fleet: Callable[..., Fleet], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = make_fleet(6)
    file = tmp_path / "witness.jsonl"
    fleet.set_policy(2, witness=str(file))
    enrol(fleet.folders[2])
    ledger = fleet.folders[2] / "ledger.jsonl"
    old = ledger.read_bytes()
    assert fleet.run(settings_of(6)).lost == {}
    ledger.write_bytes(old)
    lost = fleet.run(settings_of(6, round=2)).lost
    assert lost == {2: f"advertise: {LedgerProblem.public_text}"}
    assert "is not the one that its witness" in caplog.text
    assert ledger.read_bytes() == old


def test_the_command_begins_shows_and_resets_a_witness(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device, file, policy = tmp_path / "device", tmp_path / "witness.jsonl", tmp_path / "policy.toml"
    policy.write_text(Policy(witness=str(file)).to_toml())
    assert main([str(device), "--policy", str(policy)]) == 0
    assert main([str(device), "--show"]) == 0
    assert f"Witness: {file}\n" in capsys.readouterr().out
    file.unlink()
    for asked in ([], ["--show"], ["--verify"]):
        assert main([str(device), *asked]) == 1
        assert "is not there: mount its disk" in capsys.readouterr().err
    assert main([str(device), "--reset-witness"]) == 0
    assert main([str(device), "--verify"]) == 0
    assert oct(file.stat().st_mode)[-3:] == "600"
    assert Witness(file).last() == Mark(Witness(file).last().name, 3, Witness(file).last().head)
    assert main([str(tmp_path / "plain")]) == 0
    assert main([str(tmp_path / "plain"), "--show"]) == 0
    assert "Witness: none" in capsys.readouterr().out
