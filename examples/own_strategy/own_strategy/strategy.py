"""DP-FedAvg whose server steps by the signs of the momentum (Signum, Bernstein et al. 2018).

Every parameter moves by the learning rate, up or down, in every round. So the rate is in units of the parameters: it
does not have to be tuned anew for another clip, budget or number of clients, as that of SGD has to.

The guarantee is DP-FedAvg's. Devices do what they do there, and clip, noise and masks are around their half. The server
works on the noisy sum, which is all that it is given, and what is computed from that costs no privacy.
"""

from typing import Any

import torch

from fedsketch.conf import Config
from fedsketch.strategies.dp_fedavg import DPFedAvgDevice
from fedsketch.strategies.rounds.base import FederatedStrategy
from fedsketch.strategies.rounds.messages import Aggregate
from fedsketch.strategies.rounds.sampling import CohortSampler
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Workload


class Signum(FederatedStrategy):
    """The server's half."""

    def __init__(
        self, config: Config, job: Workload, model: FlatModel, cohorts: CohortSampler
    ) -> None:
        super().__init__(config, job, model, cohorts)
        self.momentum = torch.zeros_like(model.vector)
        self.rate = 0.0

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        """Takes the sum of a round into the model."""
        own = self.config.strategy
        done = server_round / self.config.rounds
        self.rate = own.server.lr * (1 - (1 - own.last) * done)
        self.momentum.lerp_(aggregate.sum, 1 - own.server.momentum)
        self.model.vector.sub_(self.rate * self.momentum.sign())

    def metrics(self) -> dict[str, Any]:
        """What metrics.jsonl has of a round, beside what it has for all strategies."""
        return {"rate": self.rate}

    def state_dict(self) -> dict[str, Any]:
        """What the next round depends on beside the model: checkpoints have it."""
        return {"momentum": self.momentum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.momentum.copy_(state["momentum"])


SERVER, DEVICE = Signum, DPFedAvgDevice
