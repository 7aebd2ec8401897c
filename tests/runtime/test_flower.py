"""Flower's commands as programs: what is asked, what is understood, what goes wrong. A script stands in for `flwr`."""

import json
import stat
import sys
import tomllib
from pathlib import Path

import pytest

from fedsketch.errors import FlowerError
from fedsketch.runtime.flower import Connection, connected

FLWR = """#!{python}
import json, os, sys
home = os.environ.get("FLWR_HOME")
config = open(home + "/config.toml").read() if home and os.path.exists(home + "/config.toml") else ""
with open({asked!r}, "a") as file:
    print(json.dumps([sys.argv[1:], config, os.environ.get("FLWR_TELEMETRY_ENABLED")]), file=file)
if "--run-config" in sys.argv:  # gone when the call is over
    with open(sys.argv[sys.argv.index("--run-config") + 1]) as file, open({asked!r} + ".toml", "w") as copy:
        copy.write(file.read())
print({answer!r})
"""


class Flwr:
    """The stand-in: says `answer`, and notes what it was asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked = folder / "asked"

    def answers(self, answer: object) -> None:
        text = answer if isinstance(answer, str) else json.dumps(answer)
        script = FLWR.format(python=sys.executable, asked=str(self._asked), answer=text)
        (self._folder / "flwr").write_text(script)
        (self._folder / "flwr").chmod(stat.S_IRWXU)

    def asked(self) -> tuple[list[str], str, str]:
        """Arguments, configuration file and telemetry setting of the last call."""
        arguments, config, telemetry = json.loads(self._asked.read_text().splitlines()[-1])
        return arguments, config, telemetry


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flwr:
    monkeypatch.setattr("fedsketch.runtime.flower.COMMANDS", tmp_path)
    return Flwr(tmp_path)


def test_a_name_is_looked_up_in_the_users_configuration(
    flwr: Flwr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text("mine")
    flwr.answers({"success": True, "nodes": []})
    with connected("campus", None) as connection:
        assert connection.nodes() == set()
    arguments, config, telemetry = flwr.asked()
    assert arguments == ["supernode", "list", "campus", "--format", "json"]
    assert (config, telemetry) == ("mine", "0")


def test_an_address_comes_with_its_certificate(flwr: Flwr, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").touch()
    flwr.answers({"success": True, "nodes": []})
    with connected("fl.example.org:8000", tmp_path / "ca.crt") as connection:
        connection.nodes()
    arguments, config, _ = flwr.asked()
    there = tomllib.loads(config)["superlink"][arguments[2]]
    assert there == {
        "address": "fl.example.org:8000",
        "root-certificates": str(tmp_path / "ca.crt"),
    }


def test_a_certificate_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FlowerError, match=r"no root certificate .*ca\.crt"):  # noqa: SIM117
        with connected("localhost:8000", tmp_path / "ca.crt"):
            pass


def test_overrides_arrive_as_they_are(flwr: Flwr, tmp_path: Path) -> None:
    overrides = """model.name="a b" data.shape=[1,2] 'x=${y}' \\ ünï"""
    flwr.answers({"success": True, "run-id": "17"})
    assert Connection("x").submit(Path("app"), overrides=overrides, send=True) == 17
    arguments, _, _ = flwr.asked()
    assert arguments[:4] == ["run", "app", "x", "--run-config"]
    assert arguments[4].endswith(".toml")
    read = tomllib.loads((tmp_path / "asked.toml").read_text())
    assert read == {"overrides": overrides, "send": True}


def test_a_key_that_is_known_already_is_no_error(flwr: Flwr) -> None:
    flwr.answers({"success": False, "error-message": "[code: 23] Public key already in use."})
    assert Connection("x").register(Path("node.pub")) is None
    flwr.answers({"success": True, "node-id": 2**64 - 1})
    assert Connection("x").register(Path("node.pub")) == 2**64 - 1


def test_nodes_that_were_taken_away_do_not_count(flwr: Flwr) -> None:
    rows = [{"node-id": "1", "status": "online"}, {"node-id": "2", "status": "unregistered"}]
    flwr.answers({"success": True, "nodes": rows})
    assert Connection("x").nodes() == {1}


def test_a_status_comes_with_its_reason(flwr: Flwr) -> None:
    rows = [{"status": "finished:failed", "status-details": "no clients"}]
    flwr.answers({"success": True, "runs": rows})
    assert Connection("x").status(4) == ("finished:failed", "no clients")


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (
            {"success": False, "error-message": "Using SuperLink: x\n\nConnection refused\n"},
            "Connection refused",
        ),
        ("Traceback ...\nKaboom", "Kaboom"),
    ],
)
def test_what_goes_wrong_is_one_line(flwr: Flwr, answer: object, word: str) -> None:
    flwr.answers(answer)
    with pytest.raises(FlowerError, match=word) as caught:
        Connection("x").nodes()
    assert "\n" not in str(caught.value)
    assert "Using SuperLink" not in str(caught.value)


def test_a_log_is_read_line_by_line(flwr: Flwr) -> None:
    flwr.answers("one\ntwo")
    with Connection("x").log(3) as lines:
        assert [line.rstrip() for line in lines] == ["one", "two"]
    assert flwr.asked()[0] == ["log", "3", "x", "--stream"]
