"""A residual network."""

from __future__ import annotations

from fedsketch.conf.settings import ModelSettings
from fedsketch.conf.types import Count, frozen


@frozen
class ResnetConfig(ModelSettings):
    width: Count  # channels of the first convolution
    depth: Count  # layers

    def __post_init__(self) -> None:
        if not 8 <= self.depth <= 1202 or self.depth % 6 != 2:
            raise ValueError(
                f"model=resnet has no depth {self.depth}: set model.depth to 8, 14, 20 or another 6n + 2, up to 1202"
            )


SETTINGS = ResnetConfig
