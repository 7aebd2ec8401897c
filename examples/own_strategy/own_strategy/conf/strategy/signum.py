"""The options of strategy=signum; their defaults are in the YAML file beside this one."""

from fedsketch import Config, Fraction, Optimizer, StrategySettings, frozen


@frozen
class SignumSettings(StrategySettings):
    last: Fraction

    def check(self, config: Config) -> None:
        if self.server.optimizer is not Optimizer.SGD:
            raise ValueError("strategy=signum steps by signs: leave strategy.server.optimizer=sgd")


SETTINGS = SignumSettings
