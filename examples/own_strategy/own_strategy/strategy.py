"""DP-FedAvg whose server steps by the signs of the momentum (Signum, Bernstein et al. 2018).

Every parameter moves by the learning rate, up or down, in every round. So the rate is in units of the parameters: it
does not have to be tuned again for another clip, budget or number of clients, as that of SGD has to.

The guarantee is DP-FedAvg's. Devices do what they do there, and clip, noise and masks are around their half. The server
works on the noisy sum, which is all that it is given, and what is computed from that costs no privacy.
"""

from typing import Any

import torch

from fedsketch import Aggregate, DeviceHalf, Strategy
from own_strategy.conf.strategy.signum import SignumSettings


class Signum(Strategy[SignumSettings]):
    """The server half."""

    def start(self) -> None:
        self.momentum = torch.zeros_like(self.model.vector)
        self.rate = 0.0

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        """Move the model by the sum of a round."""
        own, done = self.settings, server_round / self.config.rounds
        self.rate = own.server.lr * (1 - (1 - own.last) * done)
        self.momentum.lerp_(aggregate.sum, 1 - own.server.momentum)
        self.model.vector.sub_(self.rate * self.momentum.sign())

    def metrics(self) -> dict[str, Any]:
        """Return what metrics.jsonl has of a round, besides what it has for all strategies."""
        return {"rate": self.rate}

    def state_dict(self) -> dict[str, Any]:
        """Return what the next round depends on besides the model: checkpoints have it."""
        return {"momentum": self.momentum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.momentum.copy_(state["momentum"])


SERVER, DEVICE = Signum, DeviceHalf
