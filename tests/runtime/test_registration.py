"""`fedsketch-register`: every device knows every other by the id that the SuperLink gave it. A SuperLink in memory
stands in."""

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.errors import RegistrationError
from fedsketch.runtime.certificates import make_all
from fedsketch.runtime.flower import Connection
from fedsketch.runtime.registration import main, register_all
from fedsketch.secagg import Identity, Roster


@dataclass
class SuperLink(Connection):
    """Knows public keys and the ids that it gave them."""

    keys: dict[bytes, int] = field(default_factory=dict)
    numbers: count = field(default_factory=lambda: count(2**63))  # type: ignore[type-arg]

    def nodes(self) -> set[int]:
        return set(self.keys.values())

    def register(self, public_key: Path) -> int | None:
        if public_key.read_bytes() in self.keys:
            return None
        return self.keys.setdefault(public_key.read_bytes(), next(self.numbers))


def _keys(folder: Path, node: str) -> dict[int, bytes]:
    return dict(DeviceGuard(folder / "nodes" / node / "device").roster.keys)


def test_every_device_gets_the_whole_roster(tmp_path: Path) -> None:
    make_all(tmp_path, nodes=3)
    ids = register_all(tmp_path, SuperLink())
    assert sorted(ids) == ["0", "1", "2"]
    for name, node in ids.items():
        keys = _keys(tmp_path, name)
        assert set(keys) == set(ids.values())
        own = DeviceGuard(tmp_path / "nodes" / name / "device").identity.public
        assert keys[node] == own
        assert (tmp_path / "nodes" / name / "node-id").read_text() == f"{node}\n"


def test_calling_again_gives_the_same_ids_and_takes_newcomers_in(tmp_path: Path) -> None:
    link = SuperLink()
    make_all(tmp_path, nodes=2)
    first = register_all(tmp_path, link)
    assert register_all(tmp_path, link) == first
    make_all(tmp_path, nodes=3)
    second = register_all(tmp_path, link)
    assert {name: second[name] for name in first} == first
    assert set(_keys(tmp_path, "0")) == set(second.values())


def test_a_device_elsewhere_is_entered_by_its_public_keys(tmp_path: Path) -> None:
    make_all(tmp_path / "here", nodes=1)
    make_all(tmp_path / "there", nodes=1)
    away = tmp_path / "here" / "nodes" / "away"
    away.mkdir()
    for name in ("auth.key.pub", "identity.pub"):
        (away / name).write_bytes((tmp_path / "there" / "nodes" / "0" / name).read_bytes())
    ids = register_all(tmp_path / "here", SuperLink())
    known = Roster.load(tmp_path / "here" / "roster.json").keys
    stranger = DeviceGuard(tmp_path / "there" / "nodes" / "0" / "device").identity.public
    assert known[ids["away"]] == stranger
    assert _keys(tmp_path / "here", "0") == dict(known)
    assert not (away / "device").exists()


def test_a_new_superlink_gives_new_ids_and_the_old_ones_leave_the_roster(tmp_path: Path) -> None:
    make_all(tmp_path, nodes=2)
    old = register_all(tmp_path, SuperLink())
    new = register_all(tmp_path, SuperLink(numbers=count(5)))
    assert set(new.values()) == {5, 6}
    assert set(_keys(tmp_path, "0")) == {5, 6}
    assert not set(old.values()) & set(_keys(tmp_path, "1"))


def test_entries_made_by_hand_stay_while_the_superlink_knows_them(tmp_path: Path) -> None:
    make_all(tmp_path, nodes=1)
    link = SuperLink({b"a": 11, b"b": 12})
    by_hand = Roster({11: Identity.generate().public, 13: Identity.generate().public})
    by_hand.save(tmp_path / "roster.json")
    ids = register_all(tmp_path, link)
    assert set(_keys(tmp_path, "0")) == {11, ids["0"]}


def test_a_key_without_its_note_is_a_sentence(tmp_path: Path) -> None:
    link = SuperLink()
    make_all(tmp_path, nodes=1)
    register_all(tmp_path, link)
    (tmp_path / "nodes" / "0" / "node-id").unlink()
    with pytest.raises(RegistrationError, match="unregister that node"):
        register_all(tmp_path, link)


@pytest.mark.parametrize("arguments", [["{}"], ["{}/nowhere"], []])
def test_mistakes_end_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    (tmp_path / "ca.crt").touch()
    assert main([argument.format(tmp_path) for argument in arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedsketch-register: ")


def test_public_keys_are_enough_and_the_roster_goes_where_it_is_wanted(tmp_path: Path) -> None:
    """As the containers do it: `register` has neither the authority's folder nor a device's."""
    make_all(tmp_path / "all", nodes=2)
    for number in ("0", "1"):
        place = tmp_path / "registry" / "nodes" / number
        place.mkdir(parents=True)
        for name in ("auth.key.pub", "identity.pub"):
            (place / name).write_bytes((tmp_path / "all/nodes" / number / name).read_bytes())
    roster = tmp_path / "roster" / "roster.json"
    roster.parent.mkdir()
    ids = register_all(tmp_path / "registry", SuperLink(), roster)
    assert set(Roster.load(roster).keys) == set(ids.values())
    assert not list((tmp_path / "registry").rglob("*.key"))
    assert not (tmp_path / "registry" / "roster.json").exists()
