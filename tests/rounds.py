"""The coordinator of a strategy that a test has made: always the same one for the same strategy."""

from typing import Any
from weakref import WeakKeyDictionary

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid
from torch import Tensor

from fedsketch.strategies.algorithm import DeviceHalf, LocalWork, Strategy
from fedsketch.strategies.local.forms import rows
from fedsketch.strategies.rounds.coordinator import Coordinator
from fedsketch.strategies.rounds.sampling import CohortSampler

_COORDINATORS: WeakKeyDictionary[Strategy[Any], Coordinator] = WeakKeyDictionary()


def coordinator_of(strategy: Strategy[Any], key: int = 1) -> Coordinator:
    """Return the coordinator; its cohorts are drawn by the key of the first call."""
    if strategy not in _COORDINATORS:
        made = Coordinator(strategy, CohortSampler(strategy.config.clients, key))
        _COORDINATORS[strategy] = made
    return _COORDINATORS[strategy]


def ask(strategy: Strategy[Any], server_round: int, grid: Grid) -> list[Message]:
    """Return the messages of a round, as the round loop sends them."""
    coordinator = coordinator_of(strategy)
    return coordinator.configure_train(server_round, coordinator.arrays(), ConfigRecord(), grid)


def rows_of(half: DeviceHalf[Any], work: LocalWork) -> Tensor:
    """Return the rows that a device computes, before clip and noise."""
    return rows(half, half.prepare(work.broadcast, work.model), work)
