"""FedAvg, federated averaging (McMahan et al. 2017): the mean of the updates, weighted by the number of examples.

This is the baseline without privacy. A client's weight is the last number of the vector that it sends. So the sum of
the vectors also contains the sum of the weights.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedsketch.conf.settings import StrategySettings
from fedsketch.strategies.algorithm import Aggregate, Clients, DeviceHalf
from fedsketch.strategies.dp_fedavg import OptimizedStrategy


class FedAvg(OptimizedStrategy[StrategySettings]):
    """The server half: an optimiser step on the weighted mean. SGD with a learning rate of 1 is plain averaging."""

    def upload_length(self, server_round: int) -> int:
        return self.model.size + 1

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        self.optimizer.step(aggregate.sum[:-1] / aggregate.sum[-1])


class FedAvgDevice(DeviceHalf[None]):
    """The device half: a client with n examples and the update Delta sends (n Delta, n)."""

    ignores_unit: ClassVar[bool] = True

    def shorten_clients(self, prepared: None, rows: Tensor, clients: Clients) -> Tensor:
        weights = rows.new_tensor(clients.sizes).unsqueeze(1)
        return torch.cat([rows * weights, weights], dim=1)


SERVER, DEVICE = FedAvg, FedAvgDevice
