from fedsketch.conf.settings import StrategySettings
from fedsketch.conf.types import Positive, frozen


@frozen
class ToyStrategy(StrategySettings):
    factor: Positive


SETTINGS = ToyStrategy
