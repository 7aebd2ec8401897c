from fedsketch.conf.settings import ModelSettings
from fedsketch.conf.types import Count, frozen


@frozen
class VisitsModel(ModelSettings):
    width: Count


SETTINGS = VisitsModel
