"""Requests as the server makes them, answered by the real ClientApp in this process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedsketch.client.app import app
from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.policy import Policy
from fedsketch.conf import Config, compose
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import WrappedGrid
from fedsketch.server.grids.stack import wrap_grid
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.registry import make_strategy
from fedsketch.tasks.data.folder import DATA_VARIABLE
from fedsketch.tasks.workload import Workload
from tests.client.fleet import CARD, POLICY, Fleet
from tests.rounds import coordinator_of

SMALL = [
    "strategy=dp_fedavg",
    "device=cpu",
    "clients.total=6",
    "clients.per_round=6",
    "clients.timeout=5",
    "secagg=none",
    "privacy.against=model",
    "privacy.noise_multiplier=1.5",
    "privacy.clip=0.4",
]


@dataclass
class Exchange:
    """One server and its simulated devices."""

    strategy: Strategy
    grid: Grid

    def ask(self, round: int = 1) -> list[Message]:
        arrays = coordinator_of(self.strategy).arrays()
        return list(
            coordinator_of(self.strategy).configure_train(round, arrays, ConfigRecord(), self.grid)
        )

    def replies(self, round: int = 1) -> list[Message]:
        return list(self.grid.send_and_receive(self.ask(round), timeout=60))


@pytest.fixture
def make_exchange() -> Iterator[Callable[..., Exchange]]:
    with ExitStack() as stack:

        def build(*overrides: str) -> Exchange:
            config: Config = compose([*SMALL, *overrides])
            stack.enter_context(simulated_devices(config))
            workload = Workload(config)
            strategy = make_strategy(config, workload, workload.model())
            local = LocalGrid(app, config.clients.total)
            grid = wrap_grid(WrappedGrid(local), config, strategy.parcels)
            return Exchange(strategy, grid)

        yield build


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plays the same attack against two fleets with different data; returns what each let out."""
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)

    def play(
        attack: Any,
        first: Path | None,
        second: Path | None,
        *overrides: str,
        card: DataCard = CARD,
        policy: Policy = POLICY,
    ) -> Any:
        told = []
        for number, data in enumerate((first, second)):
            if data is None:
                monkeypatch.delenv(DATA_VARIABLE, raising=False)
            else:
                monkeypatch.setenv(DATA_VARIABLE, str(data))
            (tmp_path / f"world{number}").mkdir()
            fleet = Fleet(tmp_path / f"world{number}", overrides, card, policy)
            ends = attack(fleet)
            told.append((ends, fleet.grid.seen, fleet.ledgers()))
        return told

    return play
