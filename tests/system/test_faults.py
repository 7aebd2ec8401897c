"""Nodes that die or hang in the middle of rounds, on a real SuperLink: the run goes on, and every ledger knows what
left its device."""

import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fedsketch.client.enroll import enrol
from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.client.guard.ledger_state import LedgerState
from fedsketch.conf import Config, compose
from fedsketch.runtime.certificates import make_all, make_node
from fedsketch.runtime.children import Children, descendants
from fedsketch.runtime.deployment import run_deployment
from fedsketch.runtime.flower import COMMANDS, FlowerError, environment
from fedsketch.runtime.processes import Network
from fedsketch.runtime.submission import RunFailed, follow, submit
from fedsketch.tasks.job import Job

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]
# Nine nodes, four of which may drop out of the round; one that loses more is not tried again.
NODES = 9
KILLED_BEFORE, KILLED_DURING, HANGS, KILLED_AFTER, LATE, *OTHERS = range(NODES)
SETTINGS = [
    "data=synthetic",
    "data.examples=100",
    "data.test_examples=20",
    "data.shape=[1,2,3]",
    "data.classes=3",
    "model=logistic",
    "device=cpu",
    "rounds=1",
    "strategy=dp_fedavg",
    "strategy.local.steps=1",
    f"clients.total={NODES}",
    f"clients.per_round={NODES}",
    "clients.tolerated_dropouts=0.45",
    "clients.retries=0",
    "secagg=pairwise",
    "secagg.colluders=0",
    "secagg.patience=0.5",
    "secagg.stage_timeout=300",
    "privacy.epsilon=null",
    "privacy.noise_multiplier=1.0",
    "runtime=processes",
]
PATIENCE = 600.0
NOTICED = 120.0  # seconds in which a dead ServerApp is noticed: Flower misses its heartbeat after about 60


@dataclass
class Recorder:
    """An observer that keeps what it hears."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] | None = None

    def began(self, config: Config, done: int, guarantee: str) -> None:
        """Nothing to keep."""

    def played(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        self.summary = summary


@dataclass
class Play:
    """A run on a network of processes, and the levers to disturb it."""

    network: Network
    folder: Path
    heard: Recorder
    thread: threading.Thread
    problems: list[BaseException]

    def wait_for(self, client: int, words: str, times: int = 1) -> None:
        """Until a node has said something so many times."""
        log = self.network.private / f"node-{client}.log"
        deadline = time.monotonic() + PATIENCE
        while not log.exists() or len(re.findall(words, log.read_text(), re.DOTALL)) < times:
            assert not self.problems, self.problems
            assert self.thread.is_alive(), f"the run ended before node {client} said {words}"
            assert time.monotonic() < deadline, f"node {client} never said {words}"
            time.sleep(0.05)

    def wait_for_round(self, number: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self.heard.rows) < number:
            assert not self.problems, self.problems
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def signal(self, client: int, number: signal.Signals) -> None:
        """To a node and all its processes, at once."""
        for pid in descendants([self.network.pid(client)]):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def ledger(self, client: int) -> LedgerState:
        """What a device's ledger says, every line of it checked."""
        place = self.network.private / "nodes" / str(client) / "device"
        return DeviceGuard(place).ledger.verified()[0]

    def logs(self) -> str:
        files = [*self.network.private.glob("*.log"), self.folder / "run.log"]
        return "\n".join(path.read_text(errors="replace") for path in files)


def _sent(kind: str) -> str:
    return f"Sending: {kind} message.*?Sent successfully"


def _begin(network: Network, settings: list[str], name: str) -> Play:
    """Submit a run into the folder of this name, and follow it in a thread."""
    folder, config = network.folder.parent / name, compose(settings)
    heard, problems = Recorder(), list[BaseException]()

    def watch() -> None:
        try:
            run = submit(network.connection, settings, name, send=False).run
            follow(network.connection, run, config, folder, heard)
        except Exception as problem:
            problems.append(problem)

    thread = threading.Thread(target=watch)
    thread.start()
    return Play(network, folder, heard, thread, problems)


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """A round with four faults and a latecomer, logging all there is to log; yields when the run is over."""
    folder = tmp_path_factory.mktemp("faults") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_LOG_LEVEL", "DEBUG")
        patch.setenv("OMP_NUM_THREADS", "1")
        with Network(compose(SETTINGS), folder).running(late={LATE}) as network:
            current = _begin(network, SETTINGS, folder.name)
            _disturb(current)
            current.thread.join(PATIENCE)
            current.signal(HANGS, signal.SIGCONT)
            assert not current.thread.is_alive()
            yield current


def _disturb(play: Play) -> None:
    play.wait_for(OTHERS[0], "Receiving: query.introduce")
    play.network.start_node(LATE)
    play.wait_for(KILLED_BEFORE, _sent("query.secagg_share"))
    play.signal(KILLED_BEFORE, signal.SIGKILL)
    play.wait_for(HANGS, "Receiving: train")
    play.signal(HANGS, signal.SIGSTOP)
    play.wait_for(KILLED_DURING, "Receiving: train.*?Start `flwr-clientapp`")
    play.signal(KILLED_DURING, signal.SIGKILL)
    play.wait_for(KILLED_AFTER, _sent("train"))
    play.signal(KILLED_AFTER, signal.SIGKILL)


def test_the_run_completes(play: Play) -> None:
    assert play.problems == []
    assert play.heard.summary is not None
    assert play.heard.summary["rounds"] == 1


def test_who_delivered_is_in_the_sum_and_who_did_not_is_not(play: Play) -> None:
    # Killed before, killed during, and hanging: out. Killed after masking: in, its masks removed with the others'
    # shares.
    (row,) = play.heard.rows
    assert (row["clients"], row["dropped"]) == (6, 3)


def test_dead_nodes_cost_no_whole_timeout(play: Play) -> None:
    # Three stages lose nodes, and none of them waits for its 300 s.
    assert play.heard.rows[0]["seconds"]["round"] < 300


def test_every_ledger_knows_what_left_and_nothing_else(play: Play) -> None:
    # Rounds whose vector left, and those of them that the device itself saw through.
    ledgers = {client: play.ledger(client) for client in range(NODES)}
    counts = {client: (book.rounds, book.settled) for client, book in ledgers.items()}
    for client in (LATE, *OTHERS):
        assert counts[client] == (1, 1)
    assert counts[KILLED_BEFORE] == counts[KILLED_DURING] == (0, 0)
    assert counts[KILLED_AFTER] == (1, 0)  # stays at the worst case
    assert counts[HANGS] in [
        (0, 0),
        (1, 0),
    ]  # it may go on when it is woken; what it sends then is charged
    assert ledgers[KILLED_AFTER].spent(1e-5) > ledgers[LATE].spent(1e-5) > 0


def test_no_log_at_any_level_holds_a_secret(play: Play) -> None:
    logs = play.logs()
    assert "DEBUG" in logs
    assert "secagg_unmask" in logs
    keys = [path for path in play.network.private.rglob("*.key") if path.is_file()]
    assert len(keys) == 2 + 2 * NODES
    for path in keys:
        body = [line for line in path.read_text().splitlines() if not line.startswith("-----")]
        for line in body:
            # OpenSSH's format begins with public parts.
            if len(line) >= 40 and not line.startswith("b3BlbnNzaC1rZXktdjE"):
                assert line not in logs, path
    tokens = re.findall(r"--token[ =](\w+)", logs)
    assert tokens == []


def test_no_log_at_any_level_holds_a_clients_update_or_loss(play: Play) -> None:
    logs = play.logs()
    for values in _plaintext(play.network.config):
        assert _told(values, f"update {values}")  # the search finds what is there
        assert _told(values, "tensor([" + ", ".join(f"{value: .4f}" for value in values) + "])")
        assert not _told(values, logs)


def _told(values: list[float], text: str) -> bool:
    """Whether a text holds one of these numbers to seven places, or two neighbours to four."""
    singles = [re.escape(f"{abs(value):.9f}"[:-2]) for value in values]
    short = [re.escape(f"{abs(value):.4f}") for value in values]
    pairs = [f"{one}[^0-9]{{1,8}}{other}" for one, other in itertools.pairwise(short)]
    return re.search("|".join([*singles, *pairs]), text) is not None


def _plaintext(config: Config) -> list[list[float]]:
    """What each device computed in round 1 before clipping and noise: its loss and its gradient."""
    job = Job(config)
    known = []
    for client in range(config.clients.total):
        shard = job.shard(client)
        loss, gradient = job.model().loss_and_gradient(shard.inputs, shard.targets)
        known.append([float(loss), *(v for v in gradient.tolist() if abs(v) > 1e-3)])
    return known


# ---------------------------------------------------------------------- outages, with three nodes of which one may drop
# out
TRIO = [
    *(one for one in SETTINGS if not one.startswith(("clients.total", "clients.per_round"))),
    "clients.total=3",
    "clients.per_round=3",
    "clients.tolerated_dropouts=0.34",
]


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
    again = _begin(network, settings, name)
    again.thread.join(PATIENCE)
    assert again.problems == []
    assert again.heard.summary is not None
    assert again.heard.summary["rounds"] == rounds
    assert again.heard.rows[0]["round"] > 1
    assert _charged(network) == _vectors_sent(network)


def test_a_run_whose_serverapp_was_killed_goes_on_when_it_is_submitted_again(
    trio: Network,
) -> None:
    settings = [*TRIO, "rounds=2"]
    first = _begin(trio, settings, "killed")
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
    first = _begin(trio, settings, "restarted")
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


def test_a_submitted_run_comes_back_with_its_folder(trio: Network, tmp_path: Path) -> None:
    settings = [
        *(one for one in TRIO if not one.startswith("runtime=")),
        "runtime=deployment",
        f"runtime.superlink={trio.connection.shown}",
        f"runtime.root_certificates={trio.private / 'ca.crt'}",
    ]
    heard = Recorder()
    run_deployment(compose(settings), settings, tmp_path, heard)
    assert heard.summary is not None
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
    current = _begin(trio, TRIO, "refused")
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
    current = _begin(trio, TRIO, "wrong-key")
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
    for client in range(3):
        trio.start_node(client)  # as the engine does with containers
    current = _begin(trio, TRIO, "renewed")
    current.thread.join(PATIENCE)
    assert current.problems == []
    assert [row["clients"] for row in current.heard.rows] == [3]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""
