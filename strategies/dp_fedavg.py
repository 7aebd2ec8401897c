"""DP-FedAvg (McMahan et al. 2018): devices clip their updates and add noise; the server takes a step along the mean.

The privacy unit (`privacy.unit`) is what the guarantee protects, and what is clipped:
- `client`: each client has one update, a gradient or theta - theta_K after K local steps.
- `example`: each example has one gradient. A client sums the clipped gradients of its shard.

Formal guarantees: see `strategies.noise.device`.
"""

from __future__ import annotations

from typing import Any, Generic

from fedsketch.conf.settings import StrategySettings
from fedsketch.strategies.algorithm import Aggregate, DeviceHalf, SettingsT, Strategy
from fedsketch.strategies.rounds.optimizer import ServerOptimizer


class OptimizedStrategy(Strategy[SettingsT], Generic[SettingsT]):
    """A server half that takes its steps by an optimiser of torch (`strategy.server`)."""

    def start(self) -> None:
        self.optimizer = ServerOptimizer(self.model.vector, self.settings.server)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])


class DPFedAvg(OptimizedStrategy[StrategySettings]):
    """The server half: an optimiser step on the noisy mean."""

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        self.optimizer.step(aggregate.sum / self.units(aggregate))


SERVER, DEVICE = DPFedAvg, DeviceHalf
