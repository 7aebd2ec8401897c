"""What people are told while a round goes on: who refuses, who is silent, and which attempt failed."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsketch.client.app import make_app
from fedsketch.conf import compose
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import RECORD, REFUSAL
from fedsketch.server.grids import losses
from fedsketch.server.grids.losses import LossGrid, LossTeller
from fedsketch.server.rounds import Rounds
from tests.observers import Recorder
from tests.small import plain

NODES = {0: 2, 1: 3, 2: 4, 3: 5}  # as `LocalGrid` numbers them
FORGED = "no\nfedsketch> {}\x1b[2J"


class Silent(LocalGrid):
    """Nodes of which some never answer."""

    def __init__(self, app: ClientApp, clients: int, silent: set[int]) -> None:
        super().__init__(app, clients)
        self._silent = silent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = super().pull_messages(message_ids)
        return [reply for reply in replies if reply.metadata.src_node_id not in self._silent]


def _app(refuses: int) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        own = {REFUSAL: FORGED} if context.node_id == refuses else {"body": b""}
        return Message(RecordDict({RECORD: ConfigRecord(own)}), reply_to=message)

    return app


def _ask(grid: LossGrid) -> list[Message]:
    asked = [Message(RecordDict(), node, "train") for node in NODES.values()]
    return list(grid.send_and_receive(asked, timeout=0.3))


def test_a_refusal_is_told_once_and_clean() -> None:
    told: list[str] = []
    grid = LossGrid(LocalGrid(_app(refuses=4), 4), NODES, LossTeller(told.append))
    assert len(_ask(grid)) == len(_ask(grid)) == 4
    assert told == ["Client 2 is lost: no fedsketch> {} [2J"]


def test_silent_clients_are_named_while_the_round_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_PATIENCE", 0.1)
    told: list[str] = []
    grid = LossGrid(Silent(_app(0), 4, silent={3, 5}), NODES, LossTeller(told.append))
    assert len(_ask(grid)) == 2
    assert told == ["Waiting for clients 1, 3 since 0 s."]


def test_a_long_round_without_answers_is_not_talked_about_too_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses, "_PATIENCE", 0.1)
    told: list[str] = []
    grid = LossGrid(Silent(_app(0), 4, silent={3, 4, 5}), NODES, LossTeller(told.append))
    assert len(_ask(grid)) == 1
    assert told == []
    monkeypatch.setattr(losses, "_NO_ANSWER", 0.2)
    _ask(grid)
    assert told == ["Waiting for clients 1, 2, 3 since 0 s."]


def test_very_many_losses_are_not_all_told() -> None:
    told: list[str] = []
    teller = LossTeller(told.append)
    for client in range(1000):
        teller.lost(client, "x")
        teller.lost(client, "y")
    assert len(told) == 8
    assert "run.log" in told[-1]
    for client in range(1000):
        teller.lost(client, f"reason {client}")
    assert len(told) == 16


@pytest.mark.parametrize("masks", ["secagg=none", "secagg=pairwise secagg.colluders=0"])
def test_a_run_tells_who_is_lost_and_which_attempt_failed(
    no_report: None, tmp_path: Path, masks: str
) -> None:
    """Two of six devices fail every time; the round is tried again without them."""

    class Broken(LocalGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            return [self._broken(reply) for reply in super().pull_messages(message_ids)]

        def _broken(self, reply: Message) -> Message:
            if reply.metadata.message_type == "train" and reply.metadata.src_node_id in (3, 5):
                reply.__dict__["_content"] = None
                reply.__dict__["_error"] = Error(2, FORGED)
            return reply

    config = compose(plain("rounds=2", masks, "secagg.patience=0" if "pairwise" in masks else ""))
    recorder = Recorder()
    with simulated_devices(config):
        Rounds(config, tmp_path / "run", recorder).run(Broken(make_app(), 6))
    assert recorder.told[:2] == [
        f"Client {client} is lost: no fedsketch> {{}} [2J" for client in (1, 3)
    ]
    assert recorder.told[2].startswith("Round 1, attempt 1 of 3, failed: ")
    assert [row["dropped"] for row in recorder.rows] == [2, 2]
    assert all(line.isprintable() for line in recorder.told)
