"""Servers that are killed or restarted, nodes that are refused, and certificates that expire, with real processes:
what ends, and what continues."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fedsketch.client.enroll import enrol
from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.conf import compose
from fedsketch.errors import FlowerError, RunFailed
from fedsketch.runtime.certificates import make_all, make_node
from fedsketch.runtime.children import Children, descendants
from fedsketch.runtime.deployment import run_deployment
from fedsketch.runtime.flower import COMMANDS, environment
from fedsketch.runtime.processes import Network
from tests.observers import Recorder
from tests.system.followed_run import PATIENCE, begin, for_nodes

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]
NOTICED = 120.0  # seconds in which a dead ServerApp is noticed: Flower misses its heartbeat after about 60
# Three nodes, of which one may drop out.
TRIO = for_nodes(3, "clients.tolerated_dropouts=0.34")


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        folder = tmp_path_factory.mktemp("outages") / "network"
        with Network(compose(TRIO), folder).running() as network:
            yield network


def _charged(network: Network) -> list[int]:
    places = [network.private / "nodes" / str(client) / "device" for client in range(3)]
    return [DeviceGuard(place).ledger.verified()[0].rounds for place in places]


def _vectors_sent(network: Network) -> list[int]:
    logs = [network.private / f"node-{client}.log" for client in range(3)]
    return [len(re.findall("Sending: train message", log.read_text())) for log in logs]


def _goes_on(network: Network, settings: list[str], name: str, rounds: int) -> None:
    """The same run, submitted again, ends; rounds that were saved are not played again; every vector that left is
    charged once."""
    again = begin(network, settings, name)
    again.thread.join(PATIENCE)
    assert again.problems == []
    assert again.heard.summary
    assert again.heard.summary["rounds"] == rounds
    assert again.heard.rows[0]["round"] > 1
    assert _charged(network) == _vectors_sent(network)


def test_a_run_whose_serverapp_was_killed_goes_on_when_it_is_submitted_again(
    trio: Network,
) -> None:
    settings = [*TRIO, "rounds=2"]
    first = begin(trio, settings, "killed")
    first.wait_for_round(1)
    (server,) = [p for p in descendants([trio.pid(None)]) if "flwr-serverapp" in _command(p)]
    os.kill(server, signal.SIGKILL)
    began = time.monotonic()
    first.thread.join(PATIENCE)
    assert time.monotonic() - began < NOTICED
    assert [type(problem) for problem in first.problems] == [RunFailed]
    _goes_on(trio, settings, "killed", rounds=2)


def test_a_run_whose_superlink_was_restarted_goes_on_when_it_is_submitted_again(
    trio: Network,
) -> None:
    settings = [*TRIO, "rounds=2"]
    first = begin(trio, settings, "restarted")
    first.wait_for_round(1)
    known = trio.connection.nodes()
    trio.stop_superlink()
    trio.start_superlink()
    began = time.monotonic()
    assert trio.connection.nodes() == known  # from the state database
    first.thread.join(PATIENCE)
    assert time.monotonic() - began < NOTICED
    assert [type(problem) for problem in first.problems] == [RunFailed]
    _goes_on(trio, settings, "restarted", rounds=2)


@pytest.mark.parametrize("charged", [False, True], ids=["before the charge", "after the charge"])
def test_a_client_app_that_is_killed_is_charged_at_most_once(trio: Network, charged: bool) -> None:
    """Its node lives on, and starts another process for the same message."""
    before, sent, known = _charged(trio), _vectors_sent(trio), _clientapps(trio)
    received = (trio.private / "node-2.log").read_text().count("Receiving: train")
    current = begin(trio, TRIO, f"app-{charged}")
    current.wait_for(2, "Receiving: train", received + 1)
    while not (doomed := _clientapps(trio) - known) or (charged and _charged(trio)[2] == before[2]):
        assert current.thread.is_alive()
        time.sleep(0.005)
    for pid in doomed:
        os.kill(pid, signal.SIGKILL)
    current.thread.join(PATIENCE)
    assert current.problems == []
    assert _command(trio.pid(2))
    (row,) = current.heard.rows
    assert (row["clients"], row["dropped"]) in [(2, 1), (3, 0)]
    booked = [now - then for now, then in zip(_charged(trio), before, strict=True)]
    left = [now - then for now, then in zip(_vectors_sent(trio), sent, strict=True)]
    assert booked[:2] == left[:2] == [1, 1]
    assert left[2] <= booked[2] <= 1
    assert booked[2] == 1 or not charged


def test_a_submitted_run_comes_back_with_its_folder(trio: Network, tmp_path: Path) -> None:
    settings = [
        *(one for one in TRIO if not one.startswith("runtime=")),
        "runtime=deployment",
        f"runtime.superlink={trio.connection.shown}",
        f"runtime.root_certificates={trio.private / 'ca.crt'}",
    ]
    heard = Recorder()
    run_deployment(compose(settings), settings, tmp_path, heard)
    assert heard.summary
    note = json.loads((tmp_path / "submitted.json").read_text())
    there = trio.folder.parent / note["folder"]
    for name in (
        "config.yaml",
        "metrics.jsonl",
        "model.safetensors",
        "report.html",
        "summary.json",
    ):
        assert (tmp_path / name).read_bytes() == (there / name).read_bytes()
    assert (there / "checkpoints").exists()
    assert not (tmp_path / "checkpoints").exists()


def test_a_device_whose_policy_refuses_is_a_dropout_that_spends_nothing(trio: Network) -> None:
    policy = trio.private / "nodes" / "2" / "device" / "policy.toml"
    allowed, before = policy.read_text(), _charged(trio)
    policy.write_text(allowed.replace("smallest_cohort = 2", "smallest_cohort = 20"))
    current = begin(trio, TRIO, "refused")
    current.thread.join(PATIENCE)
    policy.write_text(allowed)
    assert current.problems == []
    assert [(row["clients"], row["dropped"]) for row in current.heard.rows] == [(2, 1)]
    assert "too small for this device" in (current.folder / "run.log").read_text()
    assert _charged(trio) == [before[0] + 1, before[1] + 1, before[2]]


def test_a_node_whose_peers_know_another_key_is_lost_alone_and_named(trio: Network) -> None:
    """It has a new key in its folder and in its own copy of the roster, and nobody else has heard of it."""
    place, before = trio.private / "nodes" / "2" / "device", _charged(trio)
    kept = {path: path.read_bytes() for path in (place / "identity.key", place / "roster.json")}
    enrol(place, rotate=True)
    current = begin(trio, TRIO, "wrong-key")
    current.thread.join(PATIENCE)
    for path, content in kept.items():
        path.write_bytes(content)
    assert current.problems == []
    assert [(row["clients"], row["dropped"]) for row in current.heard.rows] == [(2, 1)]
    said = (current.folder / "run.log").read_text()
    node = int((trio.private / "nodes" / "2" / "node-id").read_text())
    assert f"node {node}: advertise: its signature does not verify" in said
    assert _charged(trio) == [before[0] + 1, before[1] + 1, before[2]]


def test_a_node_whose_key_is_not_registered_is_turned_away(trio: Network, tmp_path: Path) -> None:
    make_node(tmp_path / "stranger", trio.private / "ca.crt", None)
    known = trio.connection.nodes()
    command = [
        COMMANDS / "fedsketch-node",
        *("--superlink", trio.connection.shown),
        *("--root-certificates", trio.private / "ca.crt"),
        *("--auth-supernode-private-key", tmp_path / "stranger" / "auth.key"),
        *("--port", "19555"),
    ]
    with Children(tmp_path) as children:
        children.start("stranger", command, environment(tmp_path / "home"))
        deadline = time.monotonic() + PATIENCE
        while not children.ended("stranger"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert "Exit Code: 305" in (tmp_path / "stranger.log").read_text()
    assert trio.connection.nodes() == known


def test_an_expired_certificate_is_named_and_ends_the_nodes_that_meet_it(trio: Network) -> None:
    nodes = [trio.pid(client) for client in range(3)]
    trio.stop_superlink()
    (trio.private / "server" / "server.crt").unlink()
    make_all(trio.private, life=timedelta(days=-1))
    with pytest.raises(FlowerError, match="certificate has expired"):
        trio.start_superlink()
    with pytest.raises(FlowerError, match="certificate has expired"):
        trio.connection.nodes()
    deadline = time.monotonic() + PATIENCE
    while any(map(_command, nodes)):  # they wait for at most 20 s between two attempts
        assert time.monotonic() < deadline
        time.sleep(0.1)
    trio.stop_superlink()
    make_all(trio.private)
    trio.start_superlink()
    _start_until_they_stay(trio)
    current = begin(trio, TRIO, "renewed")
    current.thread.join(PATIENCE)
    assert current.problems == []
    assert [row["clients"] for row in current.heard.rows] == [3]


def _start_until_they_stay(network: Network) -> None:
    """Start all nodes, as the engine does with containers: again and again. A node that comes back before Flower has
    given the old process up is refused, and ends (docs/how-to/faults.md)."""
    deadline = time.monotonic() + PATIENCE
    connected = _connections(network)
    for client in range(3):
        network.start_node(client)
    while any(now == before for now, before in zip(_connections(network), connected, strict=True)):
        assert time.monotonic() < deadline
        for client in range(3):
            if not _command(network.pid(client)):
                network.start_node(client)
        time.sleep(0.5)


def _connections(network: Network) -> list[int]:
    """How often each node has connected so far."""
    logs = [network.private / f"node-{client}.log" for client in range(3)]
    return [log.read_text().count("SuperNode ID: ") for log in logs]


def _clientapps(network: Network) -> set[int]:
    """The processes of node 2 that answer a message now."""
    found = descendants([network.pid(2)])
    return {pid for pid in found if "programs\0flwr-clientapp" in _command(pid)}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""
