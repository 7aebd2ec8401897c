"""Data that devices hold: what all must agree on, and the server's test set at `root`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedsketch.conf.settings import DataSettings
from fedsketch.conf.targets import Targets
from fedsketch.conf.types import Count, frozen

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config

_MOST_CLASSES = 65_536


@frozen
class FolderConfig(DataSettings):
    shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=8)]
    # Bounded: a number, which may come from a message, is turned into a list of that many names.
    classes: (
        Annotated[int, Field(ge=1, le=_MOST_CLASSES)]
        | Annotated[tuple[str | int, ...], Field(min_length=1, max_length=_MOST_CLASSES)]
    )
    largest_shard: Count
    # For tables: the server's file, which is not sent to devices, and its fingerprint, which is (`tasks.data.schema`).
    schema: str | None
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = Field(
        default=None, kw_only=True
    )

    def __post_init__(self) -> None:
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError("data.classes names a class twice: remove one of them")

    def check(self, config: Config) -> None:
        if self.schema is not None and self.fingerprint is None:
            return  # shape and classes follow from the schema, which the server reads
        if config.task.targets is Targets.CLASSES and len(self.class_names) < 2:
            raise ValueError(
                f"task={config.task.name} needs at least two classes: name them in data.classes"
            )
        if config.task.targets is Targets.NUMBERS and len(self.class_names) != 1:
            raise ValueError(f"task={config.task.name} learns one number: set data.classes=1")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the folders, in the order of the targets."""
        names = range(self.classes) if isinstance(self.classes, int) else self.classes
        return tuple(map(str, names))


SETTINGS = FolderConfig
