"""One hidden layer."""

from fedsketch.conf.settings import ModelSettings
from fedsketch.conf.types import Count, frozen


@frozen
class MlpConfig(ModelSettings):
    width: Count  # hidden units
    bias: bool = True


SETTINGS = MlpConfig
