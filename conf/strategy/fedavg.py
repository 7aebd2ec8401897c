"""FedAvg, the baseline without privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsketch.conf.settings import StrategySettings
from fedsketch.conf.types import frozen

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


@frozen
class FedAvgConfig(StrategySettings):
    """Federated averaging, weighted by the number of examples."""

    def check(self, config: Config) -> None:
        if config.privacy.private:
            raise ValueError(
                "strategy=fedavg gives no privacy: remove its privacy settings, or choose strategy=dp_fedavg"
            )
        if config.privacy.clip == "adaptive":
            raise ValueError(
                "strategy=fedavg sends sums over examples, whose norms say little: set privacy.clip to a number or null"
            )


SETTINGS = FedAvgConfig
