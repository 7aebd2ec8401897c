"""Identities are private files, and rosters are exact."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fedsketch.secagg.errors import SettingsError
from fedsketch.secagg.identity import Identity, Roster, verify


def test_saved_key_is_private_and_signs_the_same(tmp_path: Path) -> None:
    identity = Identity.generate()
    path = tmp_path / "device.pem"
    identity.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    loaded = Identity.load(path)
    assert loaded.public == identity.public
    assert verify(identity.public, loaded.sign(b"x"), b"x")


def test_a_key_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "device.pem"
    Identity.generate().save(path)
    with pytest.raises(FileExistsError):
        Identity.generate().save(path)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "device.pem"
    Identity.generate().save(path)
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        Identity.load(path)


def test_a_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "device.pem"
    path.write_text("no key")
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="PEM"):
        Identity.load(path)


def test_other_keys_and_statements_do_not_verify() -> None:
    one, two = Identity.generate(), Identity.generate()
    signature = one.sign(b"statement")
    assert verify(one.public, signature, b"statement")
    assert not verify(two.public, signature, b"statement")
    assert not verify(one.public, signature, b"statement!")
    assert not verify(one.public, bytes(64), b"statement")
    assert not verify(b"short", signature, b"statement")


def test_roster_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    roster = Roster({}).add(2**63 + 5, Identity.generate().public)
    roster = roster.add(3, Identity.generate().public)
    roster.save(path)
    assert Roster.load(path) == roster
    assert roster.key_of(4) is None


def test_one_key_under_two_ids_is_refused() -> None:
    key = Identity.generate().public
    with pytest.raises(SettingsError, match="two ids"):
        Roster({1: key}).add(2, key)


def test_a_known_node_keeps_its_key() -> None:
    roster = Roster({1: Identity.generate().public})
    with pytest.raises(SettingsError, match="another key"):
        roster.add(1, Identity.generate().public)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"format": "x", "nodes": {}}',
        '{"format": "secagg-roster/1", "nodes": {"a": "00"}}',
        '{"format": "secagg-roster/1", "nodes": {"1": "zz"}}',
        '{"format": "secagg-roster/1", "nodes": {"1": "00"}}',
        '{"format": "secagg-roster/1", "nodes": [1]}',
    ],
)  # fmt: skip
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    path.write_text(text)
    with pytest.raises(SettingsError):
        Roster.load(path)


@pytest.mark.parametrize(
    "spelling",
    ["01", "00", " 1", "1 ", "1\\n", "+1", "-0", "1_0", "1.0", "1e1", "0x1", "", "\u0661", "\uff11", "1" * 5000],
)  # fmt: skip
def test_an_id_has_one_spelling(spelling: str, tmp_path: Path) -> None:
    """Or two keys could stand under one id, the second in the place of the first."""
    path = tmp_path / "roster.json"
    one, two = (Identity.generate().public.hex() for _ in range(2))
    path.write_text(
        f'{{"format": "secagg-roster/1", "nodes": {{"1": "{one}", "{spelling}": "{two}"}}}}'
    )
    with pytest.raises(SettingsError, match="is not an id of a node: write ids in the roster as"):
        Roster.load(path)


def test_an_id_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    one, two = (Identity.generate().public.hex() for _ in range(2))
    path.write_text(f'{{"format": "secagg-roster/1", "nodes": {{"1": "{one}", "1": "{two}"}}}}')
    with pytest.raises(SettingsError, match="twice"):
        Roster.load(path)
