"""DP-FedAvg (McMahan et al. 2018): clip each unit's update, add noise on the device, step on the mean.

Formal guarantees: see `strategies.shared.device_noise.NoisePlan.releases`. Unit client: one update (a gradient, or theta - theta_K after K
local steps) per client. Unit example: one gradient per example, each clipped, summed over the shard.
"""

from collections.abc import MutableMapping
from typing import Any

import torch

from fedsketch.conf import Config
from fedsketch.conf.settings import OptimizerConfig
from fedsketch.strategies.shared.base import FederatedStrategy
from fedsketch.strategies.shared.cohort import Cohorts
from fedsketch.strategies.shared.device_noise import NoisePlan
from fedsketch.strategies.shared.local_update import unit_rows
from fedsketch.strategies.shared.messages import Aggregate, Broadcast
from fedsketch.strategies.shared.optimizer import ServerOptimizer
from fedsketch.tasks.examples import Examples
from fedsketch.tasks.flat import FlatModel


class DPFedAvg(FederatedStrategy):
    """The server's half: an optimiser step on the noisy mean."""

    def __init__(
        self, config: Config, model: FlatModel, noise: NoisePlan, cohorts: Cohorts, examples: int
    ) -> None:
        super().__init__(config, model, noise, cohorts, examples)
        assert isinstance(config.strategy.server, OptimizerConfig)
        self.optimizer = ServerOptimizer(model.vector, config.strategy.server)

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        self.optimizer.step(aggregate.sum / self.units(aggregate))

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])


def local_step(
    broadcast: Broadcast,
    shard: Examples,
    model: FlatModel,
    generator: torch.Generator,
    memory: MutableMapping[str, torch.Tensor],
) -> torch.Tensor:
    """The device's half: one row per unit."""
    return unit_rows(broadcast.config, model, shard, generator)


SERVER, LOCAL_STEP = DPFedAvg, local_step
