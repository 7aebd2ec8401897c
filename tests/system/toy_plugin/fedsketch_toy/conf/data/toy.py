from fedsketch.conf.settings import PartitionedSettings
from fedsketch.conf.types import Count, frozen


@frozen
class ToyData(PartitionedSettings):
    examples: Count


SETTINGS = ToyData
