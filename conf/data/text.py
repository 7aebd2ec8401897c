"""Texts with one class each, divided among the clients of this machine (docs/how-to/own_tables.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsketch.conf.table_settings import TableSettings
from fedsketch.conf.types import frozen


@frozen
class TextConfig(TableSettings):
    text: str
    label: str
    classes: Annotated[tuple[str | int, ...], Field(max_length=65_536)]
    buckets: Annotated[int, Field(ge=2, le=2**20)]
    ngrams: Annotated[int, Field(ge=1, le=8)]
    characters: bool

    def __post_init__(self) -> None:
        if len(set(map(str, self.classes))) < max(2, len(self.classes)):
            raise ValueError(
                "data=text needs the names of at least two different classes: set data.classes=[ham,spam]"
            )


SETTINGS = TextConfig
