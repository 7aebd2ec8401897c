from fedsketch import Count, ModelSettings, frozen


@frozen
class VisitsModel(ModelSettings):
    width: Count


SETTINGS = VisitsModel
