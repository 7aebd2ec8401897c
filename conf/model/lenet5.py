"""LeNet-5, which has no options."""

from fedsketch.conf.settings import ModelSettings

SETTINGS = ModelSettings
