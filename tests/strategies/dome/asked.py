"""A DOME strategy that a test asks for rounds."""

from collections.abc import Callable

from fedsketch.client.app import app
from fedsketch.runtime.local import LocalGrid
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.dome import strategy as dome
from fedsketch.strategies.rounds.messages import Broadcast
from tests import rounds

MakeStrategy = Callable[..., Strategy]
DOME = ("strategy=dome", "rounds=30", "strategy.broadcast=full")
NOISELESS = (*DOME, "privacy=none", "secagg=none")


def ask(strategy: Strategy, grid: LocalGrid, round: int) -> Broadcast:
    """The broadcast of a round as it arrives at a device."""
    messages = rounds.ask(strategy, round, grid)
    return Broadcast.from_records(messages[0].content)


def play(strategy: Strategy, numbers: range) -> None:
    grid = LocalGrid(app, strategy.config.clients.total)
    for round in numbers:
        messages = rounds.ask(strategy, round, grid)
        rounds.coordinator_of(strategy).aggregate_train(round, grid.send_and_receive(messages))


def make_dome(make_strategy: MakeStrategy, *overrides: str) -> dome.Dome:
    strategy = make_strategy(*overrides)
    assert isinstance(strategy, dome.Dome)
    return strategy
