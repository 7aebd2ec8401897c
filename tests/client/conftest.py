"""Requests as the server makes them, answered by the real ClientApp in this process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedsketch.client.app import app
from fedsketch.conf import Config, compose
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import WrappedGrid
from fedsketch.server.grids.aggregating import aggregating
from fedsketch.strategies import make_strategy
from fedsketch.strategies.shared.base import FederatedStrategy
from fedsketch.strategies.shared.cohort import Cohorts
from fedsketch.tasks.job import Job

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

    strategy: FederatedStrategy
    grid: Grid

    def ask(self, round: int = 1) -> list[Message]:
        arrays = self.strategy.arrays()
        return list(self.strategy.configure_train(round, arrays, ConfigRecord(), self.grid))

    def replies(self, round: int = 1) -> list[Message]:
        return list(self.grid.send_and_receive(self.ask(round), timeout=60))


@pytest.fixture
def make_exchange() -> Iterator[Callable[..., Exchange]]:
    with ExitStack() as stack:

        def build(*overrides: str) -> Exchange:
            config: Config = compose([*SMALL, *overrides])
            stack.enter_context(simulated_devices(config))
            job = Job(config)
            strategy = make_strategy(config, job, job.model(), Cohorts(config.clients, 1))
            local = LocalGrid(app, config.clients.total)
            grid = aggregating(WrappedGrid(local), config, strategy.parcels)
            return Exchange(strategy, grid)

        yield build
