"""A server that ships code of its own, on real processes: `fedsketch-node` answers with the installed app, and unpacks
nothing."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from fedsketch.client.enroll import enrol
from fedsketch.client.guard.guard import DEVICE_VARIABLE, IDENTITY
from fedsketch.runtime.children import Children
from fedsketch.runtime.flower import COMMANDS, Connection, connected, environment, unreachable
from fedsketch.runtime.processes import _free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]
ROOT = Path(__file__).parents[2]
PATIENCE = 300.0
PROJECT = """
[project]
name = "fedsketch"
version = "{version}"
description = "not what it says"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "fedsketch"
fab-include = ["**/*.py"]
[tool.flwr.app.components]
serverapp = "hostile:app"
clientapp = "{clientapp}"
"""
THIEF = """
import os
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

Path({trace!r}).touch()
app = ClientApp()

@app.query("introduce")
def introduce(message, context):
    key = (Path(os.environ["FEDSKETCH_DEVICE"]) / "identity.key").read_bytes()
    return Message(RecordDict({{"self": ConfigRecord({{"key": key.hex()}})}}), reply_to=message)
"""
SERVER = """
import json, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.1)
    asked = Message(RecordDict(), dst_node_id=nodes[0], message_type="query.introduce")
    (reply,) = grid.send_and_receive([asked], timeout=120)
    told = {{"error": reply.error.reason}} if reply.has_error() else dict(reply.content["self"])
    Path({answer!r}).write_text(json.dumps(told))
"""


class Attack:
    """A SuperLink, one device, and bundles that look like ours."""

    def __init__(self, folder: Path, connection: Connection) -> None:
        self.folder = folder
        self.home = folder / "home-node"
        self.connection = connection

    def answer(self, clientapp: str, release: str) -> dict[str, Any]:
        """What the device answers to a run of a bundle with this ClientApp; its code would leave a trace."""
        trace, answer = self.folder / "trace", self.folder / "answer.json"
        for file in (trace, answer):
            file.unlink(missing_ok=True)
        app = self.folder / "app"
        (app / "fedsketch" / "client").mkdir(parents=True, exist_ok=True)
        thief = THIEF.format(trace=str(trace))
        files = {
            "pyproject.toml": PROJECT.format(version=release, clientapp=clientapp),
            "hostile.py": SERVER.format(answer=str(answer)),
            "thief.py": thief,
            "fedsketch/__init__.py": "",
            "fedsketch/client/__init__.py": "",
            "fedsketch/client/app.py": thief,
        }
        for name, text in files.items():
            (app / name).write_text(text)
        run, deadline = self.connection.submit(app), time.monotonic() + PATIENCE
        while not answer.exists():
            status = self.connection.status(run)
            assert not status[0].startswith("finished") or answer.exists(), status
            assert time.monotonic() < deadline
            time.sleep(0.2)
        return {**json.loads(answer.read_text()), "ran": trace.exists()}


@contextmanager
def _attack(folder: Path, program: str) -> Iterator[Attack]:
    enrol(folder / "device")
    link, node = _free_port(), _free_port()
    address = f"127.0.0.1:{link}"
    superlink = [
        COMMANDS / "flower-superlink",
        "--insecure",
        *("--host", "127.0.0.1", "--port", str(link)),
        "--disable-runtime-dependency-installation",
    ]
    supernode = [
        COMMANDS / program,
        "--insecure",
        *("--superlink", address),
        *("--host", "127.0.0.1", "--port", str(node)),
        *("--node-config", "partition-id=7"),
    ]
    with Children(folder) as children, connected(address, None) as connection:
        children.start("link", superlink, environment(folder / "home-link"))
        deadline = time.monotonic() + PATIENCE
        while unreachable(address, None):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        attack = Attack(folder, connection)
        device = {DEVICE_VARIABLE: str(folder / "device")}
        children.start("node", supernode, {**environment(attack.home), **device})
        yield attack


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that the node finds installed is the one under test."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize("clientapp", ["thief:app", "fedsketch.client.app:app"])
def test_flowers_own_node_runs_what_the_server_ships(tmp_path: Path, clientapp: str) -> None:
    """Else the test below would attack nothing."""
    with _attack(tmp_path, "flower-supernode") as attack:
        answer = attack.answer(clientapp, version("fedsketch"))
    assert answer == {"key": (tmp_path / "device" / IDENTITY).read_bytes().hex(), "ran": True}


def test_our_node_answers_with_the_installed_app_and_unpacks_nothing(tmp_path: Path) -> None:
    own = version("fedsketch")
    with _attack(tmp_path, "fedsketch-node") as attack:
        for clientapp in ("thief:app", "fedsketch.client.app:app"):
            assert attack.answer(clientapp, own) == {"client": 7, "ran": False}
        other = attack.answer("thief:app", "9.9.9")
    assert not other["ran"]
    assert f"this device runs fedsketch {own} and the server fedsketch 9.9.9" in other["error"]
    unpacked = [path for path in attack.home.rglob("*") if path.is_file()]
    assert not [path for path in unpacked if path.suffix in (".py", ".toml")], unpacked
