"""FedAvg, federated averaging (McMahan et al. 2017): the mean of the updates, weighted by the number of examples.

This is the baseline without privacy. A client's weight is the last coordinate of the vector that it sends. So the sum
of the vectors also contains the sum of the weights.
"""

import torch

from fedsketch.strategies.dp_fedavg import DPFedAvg
from fedsketch.strategies.local.batched import BatchedWork, batched_updates
from fedsketch.strategies.local.update import client_update
from fedsketch.strategies.rounds.base import DeviceHalf, LocalWork
from fedsketch.strategies.rounds.messages import Aggregate


class FedAvg(DPFedAvg):
    """The server half: an optimiser step on the weighted mean. SGD with a learning rate of 1 is plain averaging."""

    def upload_size(self, server_round: int) -> int:
        return self.model.size + 1

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        self.optimizer.step(aggregate.sum[:-1] / aggregate.sum[-1])


class FedAvgDevice(DeviceHalf):
    """The device half: a client with n examples and the update Delta sends (n Delta, n)."""

    def rows(self, work: LocalWork) -> torch.Tensor:
        local = work.broadcast.config.strategy.local
        update = client_update(work.model, work.shard, local, work.generator)
        weight = update.new_tensor([float(len(work.shard))])
        return torch.cat([update * weight, weight]).unsqueeze(0)

    def batched_rows(self, work: BatchedWork) -> torch.Tensor | None:
        updates = batched_updates(work)
        if updates is None:
            return None
        weights = updates.new_tensor(work.shards.sizes).unsqueeze(1)
        return torch.cat([updates.mul_(weights), weights], dim=1)


SERVER, DEVICE = FedAvg, FedAvgDevice
