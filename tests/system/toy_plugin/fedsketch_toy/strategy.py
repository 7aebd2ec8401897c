"""DP-FedAvg whose server takes only a part of the mean."""

from fedsketch.strategies.dp_fedavg import DPFedAvg, DPFedAvgDevice
from fedsketch.strategies.shared.messages import Aggregate


class Toy(DPFedAvg):
    def update(self, server_round: int, aggregate: Aggregate) -> None:
        factor = self.config.strategy.factor
        self.optimizer.step(factor * aggregate.sum / self.units(aggregate))


SERVER, DEVICE = Toy, DPFedAvgDevice
