"""Whole runs in this process, on small data, watched by nobody."""

from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsketch.client.app import app as client_app
from fedsketch.client.app import make_app
from fedsketch.conf import compose
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.server.rounds import Rounds
from tests.observers import Recorder
from tests.small import plain

Failing = Callable[[int, int], bool]
Play = Callable[..., Recorder]


@pytest.fixture
def play(no_report: None, tmp_path: Path) -> Play:
    """Plays a run of `plain` in a folder; `failing(call, client)` says which of all train calls raise. `fresh` devices
    have nothing in memory."""

    def run(
        *overrides: str, folder: str = "run", failing: Failing | None = None, fresh: bool = False
    ) -> Recorder:
        config, recorder = compose(plain(*overrides)), Recorder()
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
