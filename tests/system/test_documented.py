"""Documentation that is a sequence of commands: they are read from the page and run, in their order."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fedsketch.runtime.flower import environment
from tests.docs.pages import DOCS, blocks

ROOT = Path(__file__).parents[2]
PATIENCE = 900.0  # a machine may be busy with other tests
SERVERS = ("flower-superlink", "fedsketch-gate", "fedsketch-node")
LOCAL_SUPERLINK = 39091  # Flower's own port for the SuperLink that `flwr run` starts
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]


def _commands(page: str) -> list[str]:
    """The lines of the block of commands of a page that names this file, without comments, long ones in one piece."""
    (block,) = (
        block
        for block in blocks(DOCS / page)
        if block.mark == "run by" and Path(block.note).name == Path(__file__).name
    )
    lines = block.text.replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+# .*", "", line) for line in lines]


def _free_ports(commands: list[str]) -> list[str]:
    """The same on ports that nobody uses."""
    for port in sorted(set(re.findall(r"\b(?:800\d|909\d)\b", "\n".join(commands)))):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = str(probe.getsockname()[1])
        commands = [re.sub(rf"\b{port}\b", free, command) for command in commands]
    return commands


@contextmanager
def _ended_afterwards(marker: Path) -> Iterator[None]:
    """Ends every process that has this path in its environment."""
    try:
        yield
    finally:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if str(marker).encode() in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)


def _listens(command: str) -> None:
    """Waits for a server that is started with --port."""
    deadline = time.monotonic() + PATIENCE
    port = int(command.split("--port ")[1].split()[0])
    while True:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        assert time.monotonic() < deadline, command
        time.sleep(0.2)


def test_a_federation_by_hand(tmp_path: Path) -> None:
    (tmp_path / "docker").symlink_to(ROOT / "docker")
    commands = _free_ports(_commands("how-to/deploy_by_hand.md"))
    assert len(commands) == 8
    with _ended_afterwards(tmp_path):
        for number, command in enumerate(commands):
            variables = environment(tmp_path / f"home-{number}")
            variables["FEDSKETCH_RUNS"] = str(tmp_path / "runs")
            log = tmp_path / f"{number}.log"
            with log.open("w") as output:
                process = subprocess.Popen(
                    ["bash", "-c", f"exec env {command}"],
                    cwd=tmp_path,
                    env=variables,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            if any(server in command for server in SERVERS):
                _listens(command)
            else:
                assert process.wait(PATIENCE) == 0, log.read_text()
    (summary,) = (tmp_path / "outputs").rglob("summary.json")
    assert json.loads(summary.read_text())["rounds"] == 2
    for node in range(3):
        assert (tmp_path / "certs" / "nodes" / str(node) / "device" / "ledger.jsonl").exists()


def test_flwr_run_in_flowers_simulation(tmp_path: Path) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", LOCAL_SUPERLINK)) == 0:
            pytest.skip("a local SuperLink of Flower runs already on this machine")
    first, *commands = _commands("how-to/flower.md")
    variables = environment(tmp_path / "home")
    assert first == "export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"
    assert variables["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    variables["FEDSKETCH_RUNS"] = str(tmp_path / "runs")
    rounds, clients = [], []
    with _ended_afterwards(tmp_path):
        for command in commands:
            before = set(tmp_path.glob("runs/*"))
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=ROOT,
                env=variables,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            (folder,) = set(tmp_path.glob("runs/*")) - before
            summary = json.loads((folder / "summary.json").read_text())
            assert "Report: " in done.stdout
            assert summary["private"]
            rounds.append(summary["rounds"])
            row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
            clients.append((row["clients"], row["dropped"]))
        refused = subprocess.run(
            ["bash", "-c", "flwr run . --stream --run-config 'num-clients=5'"],
            cwd=ROOT,
            env=variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert "num-supernodes=5" in refused.stdout
    assert rounds == [40, 3, 2]
    assert clients == [(2, 0), (10, 0), (2, 0)]
