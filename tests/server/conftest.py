"""Whole runs in this process, on small data, watched by nobody."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsketch.client.app import app as client_app
from fedsketch.client.app import make_app
from fedsketch.conf import Config, compose
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.server.rounds import Rounds

SMALL = [
    "strategy=dp_fedavg",
    "data=synthetic",
    "data.examples=60",
    "data.test_examples=20",
    "data.shape=[1,2,3]",
    "data.classes=3",
    "model=logistic",
    "device=cpu",
    "rounds=4",
    "clients.total=6",
    "clients.per_round=6",
    "clients.timeout=60",
    "secagg=none",
    "privacy.against=model",
]


class Recorder:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.done = -1
        self.guarantee = ""
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}

    def began(self, config: Config, done: int, guarantee: str) -> None:
        self.done, self.guarantee = done, guarantee

    def notes(self, sentence: str) -> None: ...

    def round_done(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        self.summary = summary


Failing = Callable[[int, int], bool]
Play = Callable[..., Recorder]


@pytest.fixture
def small() -> list[str]:
    """The overrides that every run of `play` begins with."""
    return SMALL


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Plays a run in a folder; `failing(call, client)` says which of all train calls raise. `fresh` devices have
    nothing in memory.

    No report: its plots would take most of the time, and have their own tests.
    """
    monkeypatch.setattr(
        "fedsketch.server.report.run_page.write_report", lambda path: path / "report.html"
    )

    def run(
        *overrides: str, folder: str = "run", failing: Failing | None = None, fresh: bool = False
    ) -> Recorder:
        config, recorder = compose([*SMALL, *overrides]), Recorder()
        app = make_app() if fresh else client_app
        app = app if failing is None else _unreliable(app, failing)
        with simulated_devices(config):
            grid = LocalGrid(app, config.clients.total)
            Rounds(config, tmp_path / folder, recorder).run(grid)
        return recorder

    return run


def _unreliable(app: ClientApp, failing: Failing) -> ClientApp:
    """The ClientApp behind a wrapper that raises for some train messages."""
    calls = iter(range(1_000_000))

    def handle(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train" and failing(
            next(calls), int(context.node_config["partition-id"])
        ):
            raise RuntimeError("the battery is empty")
        return app(message, context)

    return handle  # type: ignore[return-value]
