"""A transformer that reads an image as a sequence of patches."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsketch.conf.settings import ModelSettings
from fedsketch.conf.types import Count, frozen


@frozen
class TransformerConfig(ModelSettings):
    patch: Count  # side of a patch, in pixels
    width: Count  # numbers that describe a token
    depth: Annotated[Count, Field(le=1000)]  # blocks
    heads: Count  # of each attention
    expansion: Count  # hidden units of a block, over the width
    bias: bool = False

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(
                "model=transformer divides its width among the heads: "
                f"set model.width to a multiple of model.heads={self.heads}, instead of {self.width}"
            )


SETTINGS = TransformerConfig
