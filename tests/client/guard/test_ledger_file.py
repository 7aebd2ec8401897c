"""The ledger on disk: crashes, tampering, full disks, and older formats."""

import hashlib
import itertools
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import fedsketch.client.guard.ledger
from fedsketch.client.guard.ledger import Ledger
from fedsketch.client.guard.ledger_file import hashed_line, own_hash
from fedsketch.secagg import Refusal
from tests.client.guard.charges import ENDLESS, charged, release, this

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
    with pytest.raises(
        Refusal, match=r"ledger is missing: restore the newest backup, .* fedsketch-enroll"
    ):
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
