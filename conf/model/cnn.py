"""A small convolutional network."""

from __future__ import annotations

from fedsketch.conf.settings import ModelSettings
from fedsketch.conf.types import Count, frozen


@frozen
class CnnConfig(ModelSettings):
    width: Count  # channels of the first convolution


SETTINGS = CnnConfig
