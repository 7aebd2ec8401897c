"""Handwritten digits of 8x8 pixels, which scikit-learn brings along: there are no files to look for."""

from __future__ import annotations

from fedsketch.conf.settings import PartitionedSettings
from fedsketch.conf.types import frozen


@frozen
class DigitsConfig(PartitionedSettings):
    root: None


SETTINGS = DigitsConfig
