"""`fedsketch-enroll`: what it makes, what it keeps, and what it refuses."""

import multiprocessing
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsketch.client.enroll import main
from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.ledger import Ledger
from fedsketch.client.guard.ledger_state import Budget, RoundId
from fedsketch.client.guard.policy import Policy
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    NoSampling,
    Release,
    Skellam,
    Unit,
)
from fedsketch.secagg import Identity, Roster, SettingsError

RELEASE = Release(
    Skellam(1e8, 4096.0, 1e5), NoSampling(), Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.SERVER
)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_new_folder_holds_key_policy_and_ledger_for_its_owner_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "device"
    assert main([str(folder)]) == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("identity.key", "policy.toml", "ledger.jsonl"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    public = Identity.load(folder / "identity.key").public.hex()
    assert Policy.load(folder / "policy.toml") == Policy()
    assert Ledger(folder / "ledger.jsonl").verified()[1] == 1
    out = capsys.readouterr().out
    assert f"Public key: {public}" in out
    assert f"fedsketch-enroll {folder} --node-id <the id it printed>" in out
    assert "PRIVATE" not in out


def test_two_devices_have_two_keys(tmp_path: Path) -> None:
    keys = set()
    for name in ("a", "b"):
        assert main([str(tmp_path / name)]) == 0
        keys.add(Identity.load(tmp_path / name / "identity.key").public)
    assert len(keys) == 2


def test_the_id_may_come_later_and_a_second_call_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, roster = tmp_path / "device", tmp_path / "roster.json"
    assert main([str(folder)]) == 0
    public = Identity.load(folder / "identity.key").public
    call = [str(folder), "--node-id", str(2**64 - 1), "--roster", str(roster)]
    assert main(call) == 0
    assert "is in a roster of 1 nodes" in capsys.readouterr().out
    assert Roster.load(roster).keys == Roster.load(folder / "roster.json").keys
    assert Roster.load(roster).key_of(2**64 - 1) == public
    before = contents(folder), roster.read_bytes()
    assert main(call) == 0
    assert main([str(folder)]) == 0
    assert (contents(folder), roster.read_bytes()) == before


def test_without_a_shared_roster_the_folder_has_its_own(tmp_path: Path) -> None:
    assert main([str(tmp_path / "device"), "--node-id", "5"]) == 0
    assert list(Roster.load(tmp_path / "device" / "roster.json").keys) == [5]


def test_a_device_takes_the_shared_roster_again_when_others_have_come(tmp_path: Path) -> None:
    roster = tmp_path / "roster.json"
    for node in (5, 6):
        main([str(tmp_path / str(node)), "--node-id", str(node), "--roster", str(roster)])
    assert list(Roster.load(tmp_path / "5" / "roster.json").keys) == [5]
    assert main([str(tmp_path / "5"), "--roster", str(roster)]) == 0
    assert list(Roster.load(tmp_path / "5" / "roster.json").keys) == [5, 6]


def test_a_roster_that_is_a_link_to_the_shared_one_is_left_a_link(tmp_path: Path) -> None:
    folder, roster = tmp_path / "device", tmp_path / "roster.json"
    main([str(tmp_path / "other"), "--node-id", "4", "--roster", str(roster)])
    main([str(folder)])
    (folder / "roster.json").symlink_to(roster)
    assert main([str(folder), "--node-id", "5", "--roster", str(roster)]) == 0
    assert main([str(folder), "--rotate"]) == 0
    assert (folder / "roster.json").is_symlink()
    assert list(Roster.load(roster).keys) == [4, 5]


def test_a_key_from_elsewhere_is_added_without_a_folder(tmp_path: Path) -> None:
    public, roster = Identity.generate().public, tmp_path / "roster.json"
    call = ["--public-key", public.hex(), "--node-id", "9", "--roster", str(roster)]
    assert main(call) == 0
    assert Roster.load(roster).keys == {9: public}


def test_many_who_enrol_at_once_are_all_in_the_roster(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(4)

    def enrol(first: int) -> None:
        codes = set()
        barrier.wait()
        for node in range(first, 40, 4):
            public = Identity.generate().public.hex()
            roster = str(tmp_path / "r.json")
            call = ["--public-key", public, "--node-id", str(node), "--roster", roster]
            codes.add(main(call))
        os._exit(max(codes))

    processes = [fork.Process(target=enrol, args=(first,)) for first in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=20)
    assert [process.exitcode for process in processes] == [0] * 4
    assert sorted(Roster.load(tmp_path / "r.json").keys) == list(range(40))


def test_another_key_under_the_same_id_needs_rotate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roster = tmp_path / "roster.json"
    main([str(tmp_path / "a"), "--node-id", "5", "--roster", str(roster)])
    before = roster.read_bytes()
    capsys.readouterr()
    call = [str(tmp_path / "b"), "--node-id", "5", "--roster", str(roster)]
    assert main(call) == 1
    error = capsys.readouterr().err
    assert error.startswith("fedsketch-enroll: ")
    assert error.endswith(
        "another key for node 5: if this device replaces that one, call again with --rotate.\n"
    )
    assert roster.read_bytes() == before
    assert main([*call, "--rotate"]) == 0
    public = Identity.load(tmp_path / "b" / "identity.key").public
    assert Roster.load(roster).keys == {5: public}


def test_rotating_makes_a_new_key_and_keeps_what_was_spent(tmp_path: Path) -> None:
    folder, roster = tmp_path / "device", tmp_path / "roster.json"
    main([str(folder), "--node-id", "5", "--roster", str(roster)])
    old = Identity.load(folder / "identity.key").public
    ledger = (folder / "ledger.jsonl").read_bytes()
    assert main([str(folder), "--roster", str(roster), "--rotate"]) == 0
    new = Identity.load(folder / "identity.key").public
    assert new != old
    assert Roster.load(roster).keys == Roster.load(folder / "roster.json").keys == {5: new}
    assert (folder / "ledger.jsonl").read_bytes() == ledger
    assert stat.S_IMODE((folder / "identity.key").stat().st_mode) == 0o600


def test_a_policy_can_be_given_to_begin_with_and_is_not_replaced_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = tmp_path / "demo.toml"
    wanted.write_text("smallest_cohort = 3\nepsilon = 20.0\n")
    assert main([str(tmp_path / "device"), "--policy", str(wanted)]) == 0
    policy = tmp_path / "device" / "policy.toml"
    assert Policy.load(policy) == Policy(smallest_cohort=3, epsilon=20.0)
    wanted.write_text("smallest_cohort = 2\n")
    assert main([str(tmp_path / "device"), "--policy", str(wanted)]) == 1
    assert "exists and differs: edit it, it is not replaced." in capsys.readouterr().err
    assert Policy.load(policy).smallest_cohort == 3


def spend(folder: Path) -> None:
    ledger, this = Ledger(folder / "ledger.jsonl"), RoundId(1, 1, "d")
    ledger.admit(this, RELEASE, Budget(8.0, 1e-5, 10))
    ledger.charge(this, RELEASE, Budget(8.0, 1e-5, 10))


def test_show_says_what_was_spent_and_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "device"
    main([str(folder)])
    spend(folder)
    capsys.readouterr()
    assert main([str(folder), "--show"]) == 0
    out = capsys.readouterr().out
    spent = Ledger(folder / "ledger.jsonl").state().spent(1e-5)
    assert 0 < spent < 8
    assert (
        f"Spent: epsilon {spent:.4g} of 8 at delta 1e-05, {8 - spent:.4g} left (per client" in out
    )
    assert "Rounds: 1 of 10000, 0 of them settled" in out
    assert "Node: not in the roster yet" in out
    assert Identity.load(folder / "identity.key").public.hex() in out


def test_show_says_that_unmasked_replies_are_beyond_any_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(tmp_path / "device")])
    Ledger(tmp_path / "device" / "ledger.jsonl").note_unmasked("train")
    assert main([str(tmp_path / "device"), "--show"]) == 0
    out = capsys.readouterr().out
    assert "Spent: epsilon inf of 8 at delta 1e-05, 0 left" in out
    assert "Unmasked replies: 1; no epsilon holds for this device any more" in out


def test_verify_reads_the_whole_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "device"
    main([str(folder)])
    spend(folder)
    assert main([str(folder), "--verify"]) == 0
    assert "Ledger: 2 lines, whole and in order" in capsys.readouterr().out
    path = folder / "ledger.jsonl"
    path.write_bytes(
        path.read_bytes().replace(b"4096.0", b"9096.0").replace(b"charged", b"charges")
    )
    assert main([str(folder), "--verify"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name the device's folder: fedsketch-enroll FOLDER."),
        (["D", "--node-id", "five"], "Argument --node-id: invalid int value: 'five': see fedsketch-enroll --help."),
        (["D", "--colour", "red"], "Unrecognized arguments: --colour red: see fedsketch-enroll --help."),
        (["D", "--node-id", "-1"], "A roster maps 64-bit node ids to 32-byte Ed25519 keys."),
        (["D", "--rotate"], "--rotate needs --node-id: the roster does not know this device's key."),
        (
            ["D", "--node-id", "3", "--roster", "broken.json"],
            "broken.json is not a roster of the format secagg-roster/1.",
        ),
        (["D", "--policy", "broken.json"], "In this device's policy, there is no key"),
        (["D", "--policy", "missing.toml"], "missing.toml: No such file or directory."),
        (["D", "--show"], "D/policy.toml: No such file or directory."),
        (["file"], "file: File exists."),
        (["--public-key", "00"], "--public-key goes with --roster and --node-id, and without a folder."),
        (["--public-key", "xy", "--node-id", "1", "--roster", "r"], "a public key is 64 hexadecimal digits."),
        (
            ["--public-key", "00", "--node-id", "1", "--roster", "r"],
            "A roster maps 64-bit node ids to 32-byte Ed25519 keys.",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_exit_code_1(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("nonsense = 1")
    Path("file").touch()
    assert main(arguments) == 1
    out = capsys.readouterr()
    assert out.err.startswith("fedsketch-enroll: ")
    assert sentence in out.err
    assert out.err.count("\n") == 1
    assert out.out == ""


def test_a_key_that_others_may_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(tmp_path / "device")])
    (tmp_path / "device" / "identity.key").chmod(0o644)
    assert main([str(tmp_path / "device")]) == 1
    assert "run chmod 600 on it." in capsys.readouterr().err


def _arrays(path: Path, classes: int, count: int) -> Path:
    targets = np.arange(count) % classes
    np.savez(path, inputs=np.zeros((count, 1, 2, 3), np.float32), targets=targets)
    return path


def test_the_data_card_describes_the_data_and_hides_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _arrays(tmp_path / "own.npz", 3, 37)
    assert main([str(tmp_path / "device"), "--data", str(data)]) == 0
    card = DataCard.load(tmp_path / "device" / "data.toml")
    assert card == DataCard("folder", (1, 2, 3), ("0", "1", "2"), 64)
    assert stat.S_IMODE((tmp_path / "device" / "data.toml").stat().st_mode) == 0o600
    capsys.readouterr()
    assert main([str(tmp_path / "device"), "--show"]) == 0
    shown = capsys.readouterr().out
    assert "Data: folder, 1 x 2 x 3, 3 classes, at most 64 examples" in shown
    assert "37" not in shown.split("Data:")[1].splitlines()[0]


def test_classes_that_a_device_does_not_have_are_said_by_its_owner(tmp_path: Path) -> None:
    data = _arrays(tmp_path / "own.npz", 2, 4)
    for asked, expected in (("10", tuple("0123456789")), ("cat,dog", ("cat", "dog"))):
        assert main([str(tmp_path / "device"), "--data", str(data), "--classes", asked]) == 0
        assert DataCard.load(tmp_path / "device" / "data.toml").classes == expected


def test_images_are_described_by_their_folders(tmp_path: Path) -> None:
    for name in ("dog", "cat"):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (5, 4)).save(tmp_path / "images" / name / "0.png")
    assert main([str(tmp_path / "device"), "--data", str(tmp_path / "images")]) == 0
    card = DataCard.load(tmp_path / "device" / "data.toml")
    assert card == DataCard("folder", (3, 4, 5), ("cat", "dog"), 2)


def test_a_data_set_that_everybody_has_is_described_by_its_name(tmp_path: Path) -> None:
    assert main([str(tmp_path / "device"), "--data", "digits"]) == 0
    card = DataCard.load(tmp_path / "device" / "data.toml")
    assert (card.data, card.shape, len(card.classes)) == ("digits", (1, 8, 8), 10)


@pytest.mark.parametrize("trouble", ["broken", "empty", "other classes", "nowhere", "no data"])
def test_data_that_cannot_be_described_change_nothing(
    tmp_path: Path, trouble: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, more = tmp_path / "own.npz", list[str]()
    if trouble == "broken":
        data.write_bytes(b"PK no archive")
    elif trouble == "empty":
        _arrays(data, 2, 0)
    elif trouble == "other classes":
        _arrays(data, 5, 10)
        more = ["--classes", "3"]
    asked = ["--classes", "3"] if trouble == "no data" else ["--data", str(data), *more]
    assert main([str(tmp_path / "device"), *asked]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "device").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'data = "folder"\nshape = []\nclasses = ["a", "b"]\nlargest_shard = 2',
            "length of a vector",
        ),
        (
            'data = "folder"\nshape = [1, 8, 0]\nclasses = ["a", "b"]\nlargest_shard = 2',
            "length of a vector",
        ),
        ('data = "folder"\nshape = [9]\nclasses = ["a"]\nlargest_shard = 2', "2 names at least"),
        (
            'data = "folder"\nshape = [9]\nclasses = ["a"]\nlargest_shard = 2\ntargets = "x"',
            "one of classes, numbers, labels",
        ),
        ('data = "folder"\nshape = [1, 8, 8]\nclasses = ["a", "a"]\nlargest_shard = 2', "once"),
        ('data = "folder"\nshape = [1, 8, 8]\nclasses = [1, 2]\nlargest_shard = 2', "texts"),
        ('data = "folder"\nshape = [1, 8, 8]\nclasses = ["a", "b"]', "'largest_shard' is missing"),
    ],
)
def test_a_wrong_card_is_refused_with_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "data.toml").write_text(text)
    with pytest.raises(SettingsError, match=sentence):
        DataCard.load(tmp_path / "data.toml")


def test_a_roster_that_is_not_there_is_refused_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "device"), "--roster", str(tmp_path / "typo.json")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "typo.json does not exist" in line
    assert list(tmp_path.iterdir()) == []
