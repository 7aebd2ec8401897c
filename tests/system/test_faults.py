"""Nodes that die or hang in the middle of rounds, on a real SuperLink: the run continues, and every ledger knows what
left its device."""

import itertools
import re
import signal
from collections.abc import Iterator

import pytest

from fedsketch.conf import Config, compose
from fedsketch.runtime.processes import Network
from fedsketch.tasks.workload import Workload
from tests.system.followed_run import NODES, PATIENCE, Play, begin, for_nodes

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]
KILLED_BEFORE, KILLED_DURING, HANGS, KILLED_AFTER, LATE, *OTHERS = range(NODES)


def _sent(kind: str) -> str:
    return f"Sending: {kind} message.*?Sent successfully"


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """A round with four faults and a latecomer, logging all there is to log; yields when the run is over."""
    folder = tmp_path_factory.mktemp("faults") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_LOG_LEVEL", "DEBUG")
        patch.setenv("OMP_NUM_THREADS", "1")
        settings = for_nodes(NODES)
        with Network(compose(settings), folder).running(late={LATE}) as network:
            current = begin(network, settings, folder.name)
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
    assert play.heard.summary
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
    assert len(keys) == 3 + 2 * NODES
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
    workload = Workload(config)
    known = []
    for client in range(config.clients.total):
        shard = workload.shard(client)
        loss, gradient = workload.model().loss_and_gradient(shard.inputs, shard.targets)
        known.append([float(loss), *(v for v in gradient.tolist() if abs(v) > 1e-3)])
    return known
