from fedsketch.conf.settings import ModelSettings
from fedsketch.conf.types import Count, frozen


@frozen
class ToyModel(ModelSettings):
    width: Count


SETTINGS = ToyModel
