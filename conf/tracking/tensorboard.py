"""TensorBoard."""

from __future__ import annotations

from fedsketch.conf.settings import TrackingSettings
from fedsketch.conf.types import frozen


@frozen
class TensorBoardSettings(TrackingSettings):
    folder: str | None


SETTINGS = TensorBoardSettings
