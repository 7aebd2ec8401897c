"""Data that devices hold: what all must agree on, and the server's test set below `root`."""

from typing import Annotated

from pydantic import Field

from fedsketch.conf.settings import DataSettings
from fedsketch.conf.types import Count, frozen

_MOST_CLASSES = 65_536


@frozen
class FolderConfig(DataSettings):
    shape: tuple[Count, Count, Count]
    # Bounded, because a list of their names is made of a number, also of one that came in a message.
    classes: (
        Annotated[int, Field(ge=2, le=_MOST_CLASSES)]
        | Annotated[tuple[str | int, ...], Field(min_length=2, max_length=_MOST_CLASSES)]
    )
    largest_shard: Count

    def __post_init__(self) -> None:
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError("data.classes names a class twice: take one away")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the folders, in the order of the targets."""
        names = range(self.classes) if isinstance(self.classes, int) else self.classes
        return tuple(map(str, names))


SETTINGS = FolderConfig
