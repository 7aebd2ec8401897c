"""DP-FedAvg."""

from fedsketch.conf.settings import StrategySettings

SETTINGS = StrategySettings
