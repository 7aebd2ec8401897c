"""The coordinator of a strategy that a test has made: always the same one for the same strategy."""

from typing import Any
from weakref import WeakKeyDictionary

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedsketch.strategies.algorithm import Strategy
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
