"""A DOME strategy that a test asks for rounds."""

from collections.abc import Callable

from flwr.app import ConfigRecord

from fedsketch.client.app import app
from fedsketch.runtime.local import LocalGrid
from fedsketch.strategies.dome import strategy as dome
from fedsketch.strategies.rounds.base import FederatedStrategy
from fedsketch.strategies.rounds.messages import Broadcast

MakeStrategy = Callable[..., FederatedStrategy]
DOME = ("strategy=dome", "rounds=30", "strategy.broadcast=full")
NOISELESS = (*DOME, "privacy=none", "secagg=none")
LARGER = ("data.shape=[1,2,30]", "data.classes=10")  # 600 weights, sketched; 10 biases, whole


def ask(strategy: FederatedStrategy, grid: LocalGrid, round: int) -> Broadcast:
    """The broadcast of a round as it arrives at a device."""
    messages = strategy.configure_train(round, strategy.arrays(), ConfigRecord(), grid)
    return Broadcast.from_records(messages[0].content)


def play(strategy: FederatedStrategy, rounds: range) -> None:
    grid = LocalGrid(app, strategy.config.clients.total)
    for round in rounds:
        messages = strategy.configure_train(round, strategy.arrays(), ConfigRecord(), grid)
        strategy.aggregate_train(round, grid.send_and_receive(messages))


def make_dome(make_strategy: MakeStrategy, *overrides: str) -> dome.Dome:
    strategy = make_strategy(*overrides)
    assert isinstance(strategy, dome.Dome)
    return strategy
