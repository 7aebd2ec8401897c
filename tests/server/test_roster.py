"""A node that signs with a wrong key: with the devices' keys at hand, the server loses it alone and says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsketch.client.app import app as client_app
from fedsketch.client.guard.guard import SimulatedGuard
from fedsketch.conf import Config, compose
from fedsketch.errors import ConfigError, TooFewClients
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import Identity, Roster, SimulationRoster
from fedsketch.server.observers.events import StreamProgress
from fedsketch.server.roster import ROSTER_VARIABLE, known_roster
from fedsketch.server.rounds import Rounds
from tests.small import plain

WRONG = 4  # the third of nodes 2 to 7
SECURE = [
    "secagg=pairwise",
    "secagg.colluders=0",
    "clients.tolerated_dropouts=0.2",
    "clients.retries=0",
    "rounds=2",
]


class _WithAnotherKey(SimulatedGuard):
    """A device that is sure of a key of which its peers know nothing."""

    def __init__(self, node: int) -> None:
        super().__init__(node)
        if node == WRONG:
            self.identity = Identity.generate()
            self.roster = _Roster(self.identity.public)


class _Roster(SimulationRoster):
    def __init__(self, own: bytes) -> None:
        self.own = own

    def key_of(self, node: int) -> bytes | None:
        return self.own if node == WRONG else super().key_of(node)


@pytest.fixture
def config(no_report: None, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr("fedsketch.client.guard.guard.SimulatedGuard", _WithAnotherKey)
    return compose(plain(*SECURE))


def test_a_node_with_a_wrong_key_is_lost_alone_by_name_and_the_rounds_complete(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = Rounds(config, tmp_path, StreamProgress(send_files=False))
    with simulated_devices(config):
        rounds.run(LocalGrid(client_app, config.clients.total), known_roster())
    rows = rounds.folder.read_metrics()
    assert [(row["clients"], row["dropped"]) for row in rows] == [(5, 1)] * 2
    assert f"1 dropouts: node {WRONG}: advertise: its signature does not verify" in caplog.text


def test_without_a_roster_the_devices_refuse_the_round_and_name_the_node(
    play: Callable[..., Any], config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TooFewClients):
        play(*SECURE)
    assert f"The keys of node {WRONG} are not signed by it for these settings." in caplog.text


def test_the_roster_is_the_file_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    monkeypatch.delenv(ROSTER_VARIABLE, raising=False)
    assert known_roster() is None
    roster = Roster({5: Identity.generate().public})
    roster.save(tmp_path / "roster.json")
    monkeypatch.setenv(ROSTER_VARIABLE, str(tmp_path / "roster.json"))
    assert known_roster() == roster
    monkeypatch.setenv(SIMULATION_VARIABLE, "1")
    assert isinstance(known_roster(), SimulationRoster)


def test_a_roster_that_is_named_but_missing_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    monkeypatch.setenv(ROSTER_VARIABLE, str(tmp_path / "absent.json"))
    with pytest.raises(ConfigError) as caught:
        known_roster()
    assert str(caught.value) == (
        f"The roster {tmp_path / 'absent.json'} cannot be read (No such file or directory): write it with "
        "fedsketch-register, or unset FEDSKETCH_ROSTER."
    )


def test_a_file_that_is_no_roster_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "roster.json").write_text('{"format": "another"}')
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    monkeypatch.setenv(ROSTER_VARIABLE, str(tmp_path / "roster.json"))
    with pytest.raises(ConfigError, match=r"is not a roster .*FEDSKETCH_ROSTER"):
        known_roster()
