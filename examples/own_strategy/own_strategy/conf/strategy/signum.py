from typing import TYPE_CHECKING

from fedsketch.conf.settings import Optimizer, StrategySettings
from fedsketch.conf.types import Fraction, frozen

if TYPE_CHECKING:
    from fedsketch.conf import Config


@frozen
class SignumSettings(StrategySettings):
    last: Fraction

    def check(self, config: "Config") -> None:
        if self.server.optimizer is not Optimizer.SGD:
            raise ValueError("strategy=signum steps by signs: leave strategy.server.optimizer=sgd")


SETTINGS = SignumSettings
