"""A network with one or several hidden layers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsketch.conf.settings import ModelSettings
from fedsketch.conf.types import Count, frozen


@frozen
class MlpConfig(ModelSettings):
    width: Count | Annotated[tuple[Count, ...], Field(min_length=1, max_length=64)]  # hidden units
    bias: bool = True

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of hidden units of each layer."""
        return (self.width,) if isinstance(self.width, int) else self.width


SETTINGS = MlpConfig
