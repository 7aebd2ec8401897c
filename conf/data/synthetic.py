"""A classification problem of any size."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsketch.conf.settings import PartitionedSettings
from fedsketch.conf.types import Count, Positive, frozen


@frozen
class SyntheticConfig(PartitionedSettings):
    root: None
    examples: Count
    test_examples: Count
    shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=8)]
    classes: Annotated[int, Field(ge=2)]
    separation: Positive


SETTINGS = SyntheticConfig
