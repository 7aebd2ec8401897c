"""What owners read to each other: every change of a key shows, and a roster of invented peers does too."""

import math
from pathlib import Path

import pytest

from fedsketch.client.enroll import main
from fedsketch.client.fingerprints import (
    NODE_DIGITS,
    ROSTER_DIGITS,
    node_fingerprint,
    roster_fingerprint,
)
from fedsketch.secagg import Identity, Roster


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    capsys.readouterr()
    assert main([*map(str, arguments), "--fingerprints"]) == 0
    return capsys.readouterr().out.splitlines()


def enrolled(root: Path, nodes: int) -> Path:
    """Devices that share a roster, each with a copy of it."""
    roster = root / "roster.json"
    for node in range(1, nodes + 1):
        assert main([str(root / str(node)), "--node-id", str(node), "--roster", str(roster)]) == 0
    for node in range(1, nodes + 1):
        assert main([str(root / str(node)), "--roster", str(roster)]) == 0
    return roster


def test_the_digits_are_those_of_other_versions_too() -> None:
    """Owners compare across machines: this must never change."""
    key = bytes(range(32))
    assert node_fingerprint(7, key) == "39301 47595 10997 60405 69360"
    assert (
        roster_fingerprint(Roster({7: key, 2: bytes(32)}))
        == "14606 95916 55460 93263 70153 73839 93494 44066 63241 75284"
    )


def test_they_are_too_long_to_be_met_by_grinding_keys() -> None:
    assert NODE_DIGITS * math.log2(10) > 80  # second preimage
    assert ROSTER_DIGITS * math.log2(10) / 2 > 80  # collision


def test_a_key_under_another_id_has_other_digits() -> None:
    key = Identity.generate().public
    assert node_fingerprint(1, key) != node_fingerprint(2, key)


def test_all_owners_of_a_roster_see_the_same_list_with_their_own_line_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roster = enrolled(tmp_path, 3)
    plain = printed(capsys, "--roster", roster)
    keys = Roster.load(roster).keys
    assert plain == [
        f"Roster of 3 nodes: {roster_fingerprint(Roster(keys))}",
        *(f"{node}: {node_fingerprint(node, keys[node])}" for node in (1, 2, 3)),
    ]
    for node in (1, 2, 3):
        seen = printed(capsys, tmp_path / str(node))
        assert seen == [line + "  this device" * (at == node) for at, line in enumerate(plain)]


def test_a_roster_with_invented_peers_differs_from_what_the_real_peers_read_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator reads the hash of the very file that he made up, so comparing with him finds nothing."""
    real = Roster.load(enrolled(tmp_path, 20)).keys
    invented = {
        node: key if node == 1 else Identity.generate().public for node, key in real.items()
    }
    Roster(invented).save(tmp_path / "invented.json")
    assert main([str(tmp_path / "1"), "--roster", str(tmp_path / "invented.json")]) == 0
    mine, peer = printed(capsys, tmp_path / "1"), printed(capsys, tmp_path / "2")
    assert mine[0] != peer[0]
    (read_out,) = [line for line in peer if line.endswith("  this device")]
    assert read_out.removesuffix("  this device") not in mine
    assert [
        a == b.removesuffix("  this device") for a, b in zip(mine[2:], peer[2:], strict=True)
    ] == [False] * 19


def test_a_new_roster_can_be_looked_at_before_it_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    enrolled(tmp_path, 2)
    Roster({9: Identity.generate().public}).save(tmp_path / "new.json")
    capsys.readouterr()
    assert (
        main([str(tmp_path / "1"), "--roster", str(tmp_path / "new.json"), "--fingerprints"]) == 1
    )
    assert capsys.readouterr().err.endswith(
        "new.json does not hold this device's key: do not accept it.\n"
    )
    assert len(Roster.load(tmp_path / "1" / "roster.json").keys) == 2


def test_fingerprints_of_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--fingerprints"]) == 1
    assert capsys.readouterr().err == (
        "fedsketch-enroll: --fingerprints goes with the device's folder, or with --roster.\n"
    )
