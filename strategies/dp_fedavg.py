"""DP-FedAvg (McMahan et al. 2018): devices clip their updates and add noise; the server takes a step along the mean.

The privacy unit (`privacy.unit`) is what the guarantee protects, and what is clipped:
- `client`: each client has one update, a gradient or theta - theta_K after K local steps.
- `example`: each example has one gradient. A client sums the clipped gradients of its shard.

Formal guarantees: see `strategies.noise.device`.
"""

from collections.abc import Iterator
from typing import Any

import torch

from fedsketch.conf import Config
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.strategies.local.batched import BatchedWork, batched_unit_rows
from fedsketch.strategies.local.factored import batched_factored, factored_blocks
from fedsketch.strategies.local.update import unit_rows
from fedsketch.strategies.rounds.base import DeviceHalf, FederatedStrategy, LocalWork
from fedsketch.strategies.rounds.messages import Aggregate
from fedsketch.strategies.rounds.optimizer import ServerOptimizer
from fedsketch.strategies.rounds.sampling import CohortSampler
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Workload


class DPFedAvg(FederatedStrategy):
    """The server half: an optimiser step on the noisy mean."""

    def __init__(
        self, config: Config, job: Workload, model: FlatModel, cohorts: CohortSampler
    ) -> None:
        super().__init__(config, job, model, cohorts)
        self.optimizer = ServerOptimizer(model.vector, config.strategy.server)

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        self.optimizer.step(aggregate.sum / self.units(aggregate))

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])


class DPFedAvgDevice(DeviceHalf):
    """The device half: one row per privacy unit."""

    def rows(self, work: LocalWork) -> torch.Tensor:
        return unit_rows(work.broadcast.config, work.model, work.shard, work.generator)

    def blocks(self, work: LocalWork) -> Iterator[Rows]:
        if work.broadcast.config.privacy.unit is not Unit.EXAMPLE:
            return super().blocks(work)
        return factored_blocks(work)

    def batched_rows(self, work: BatchedWork) -> torch.Tensor | None:
        return batched_unit_rows(work)

    def batched_blocks(self, work: BatchedWork) -> list[Rows] | None:
        return batched_factored(work)


SERVER, DEVICE = DPFedAvg, DPFedAvgDevice
