"""The ServerApp as a SuperLink starts it: configuration from the run config, a folder that can be resumed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fedsketch.client.app import app as client_app
from fedsketch.conf import compose
from fedsketch.errors import ConfigError, TooFewClients
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.runtime.resume import resumed_run
from fedsketch.server.app import _check_simulation, app, run_path
from fedsketch.server.observers.events import EventReader
from tests.small import plain

TINY = plain("strategy=dome rounds=2", clients=4)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FEDSKETCH_RUNS", str(tmp_path))
    with simulated_devices(compose(TINY)):
        yield tmp_path


def _serve(**run_config: str | bool | int) -> None:
    asked = {"overrides": " ".join(TINY), "folder": "", "send": False, "events": True, **run_config}
    app(LocalGrid(client_app, 4), Context(5, 1, {}, RecordDict(), asked))


def _events(printed: str) -> list[tuple[str, dict[str, Any]]]:
    reader = EventReader()
    return [event for line in printed.splitlines() if (event := reader.read(line))]


def test_a_run_writes_a_folder_that_can_be_resumed(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _serve()
    folder = runs / "run-5"
    config, _ = resumed_run(folder, ["rounds=2"])
    assert config == compose(TINY)
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 2
    assert (folder / "run.log").exists()
    kinds = [kind for kind, _ in _events(capsys.readouterr().out)]
    assert kinds == ["began", "played", "played", "ended"]


def test_a_run_goes_on_in_the_folder_that_is_named(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _serve(folder="mine")
    (
        runs
        / "mine"
        / "checkpoints"
        / sorted(p.name for p in (runs / "mine" / "checkpoints").iterdir())[-1]
    ).unlink()
    (runs / "mine" / "summary.json").unlink()  # as if it had been killed before its end
    capsys.readouterr()
    _serve(folder="mine", send=True)
    events = _events(capsys.readouterr().out)
    assert events[0] == ("began", {**events[0][1], "done": 1})
    assert {facts["name"] for kind, facts in events if kind == "file"} >= {
        "metrics.jsonl",
        "model.safetensors",
        "report.html",
        "summary.json",
    }


def _guarantees(printed: str) -> list[str]:
    return [str(facts["guarantee"]) for kind, facts in _events(printed) if kind == "began"]


def test_simulated_devices_take_the_guarantee_back(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """docker-compose.insecure.yml tells the ServerApp, too, that nobody is protected."""
    _serve(folder="insecure")
    assert "NOT PRIVATE: the devices are simulated" in _guarantees(capsys.readouterr().out)[0]
    summary = json.loads((runs / "insecure" / "summary.json").read_text())
    assert "NOT PRIVATE" in summary["guarantee"]
    assert "simulated" in summary["not_private"]
    monkeypatch.delenv(SIMULATION_VARIABLE)
    with pytest.raises(TooFewClients):  # devices without a folder refuse
        _serve(folder="secure")
    assert "NOT PRIVATE" not in _guarantees(capsys.readouterr().out)[0]


def test_without_a_submitter_progress_is_for_people(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _serve(events=False, **{"num-server-rounds": ""})
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("fedsketch: ") for line in lines)
    assert "4 of 4 clients per round" in lines[0]
    assert lines[2].startswith("fedsketch: round 1 of 2, accuracy ")
    assert "epsilon" in lines[2]
    assert lines[-1] == f"fedsketch: Report: {runs / 'run-5' / 'report.html'}"


def test_flowers_keys_are_part_of_the_run(runs: Path) -> None:
    unsaid = [one for one in TINY if not one.startswith("rounds=")]
    _serve(overrides=" ".join(unsaid), **{"num-server-rounds": 1})
    config, _ = resumed_run(runs / "run-5", [])
    assert config.rounds == 1


def test_missing_nodes_are_told_soon(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsketch.server.app._SOON", 0.2)
    wanted = [*TINY, "clients.total=6", "clients.timeout=1"]
    with pytest.raises(TooFewClients):
        _serve(overrides=" ".join(wanted))
    kind, facts = _events(capsys.readouterr().out)[0]
    assert kind == "note"
    assert "4 of clients.total=6 nodes" in str(facts["told"])


def test_a_simulation_refuses_what_would_never_come() -> None:
    with pytest.raises(ConfigError, match=r"2 SuperNodes.*num-supernodes=4.*num-clients=2"):
        _check_simulation(compose(TINY), 2)
    _check_simulation(compose(TINY), 4)
    own = ["data=folder", "data.classes=[a,b]", "data.shape=[1,2,3]", "data.largest_shard=5"]
    with pytest.raises(ConfigError, match="runtime=simulation"):
        _check_simulation(compose([*TINY, "privacy.randomness=seeded"]), 4)
    with pytest.raises(ConfigError, match="real devices"):
        _check_simulation(compose(own), 60)


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "/etc"])
def test_a_submitter_chooses_no_path(runs: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not the name"):
        run_path(name)
