"""The data card: what kind of data a device has, as far as a run may know. A TOML file that its owner makes once.

Whether a run fits is decided by comparing its configuration with this card. The data themselves are not read before
the
ledger is charged, so a refusal reveals what the card says, and nothing of the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsketch.client.guard.owners_file import OwnersFile, key, needed

FOLDER = "folder"  # the name of data that are the owner's own

# The names in `conf.targets`, which is not imported, because the guard must answer before slow imports.
CLASSES = "classes"
TARGETS = (CLASSES, "numbers", "labels")


@dataclass(frozen=True)
class DataCard(OwnersFile):
    """What the owner says about the data."""

    what: ClassVar[str] = "data card"
    head: ClassVar[str] = (
        "What kind of data this device has. No message can change it. Whoever sends messages can find out what "
        "stands here, but no more."
    )

    data: str = needed(
        '"folder": the owner\'s own files, at the path in FEDSKETCH_DATA. '
        "Otherwise the name of a data set that holds nothing private."
    )
    shape: tuple[int, ...] = needed(
        "The shape of an example: channels, height and width of an image, or the length of a vector."
    )
    classes: tuple[str, ...] = needed(
        "The names of the classes, in the order of their numbers; or of the labels; or of the number to predict."
    )
    largest_shard: int = needed(
        "No fewer than the examples of this device: rounded up, so that their number stays unknown. A run with\n"
        "privacy.unit=example must allow so many (data.largest_shard). There only the first so many records count."
    )

    targets: str = key(
        CLASSES,
        'What a run may learn about an example: its class ("classes"), a number ("numbers") '
        'or several labels ("labels").',
    )

    schema: str = key(
        "",
        "For a table: the fingerprint of its schema. A run must have the same.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need(
            len(self.shape) >= 1 and all(size >= 1 for size in self.shape),
            "shape is a list of numbers: channels, height, width of an image, or the length of a vector.",
        )
        self.need(self.targets in TARGETS, f"targets is one of {', '.join(TARGETS)}.")
        fewest = 2 if self.targets == CLASSES else 1
        self.need(
            len(self.classes) >= fewest and len(set(self.classes)) == len(self.classes),
            f"classes holds {fewest} names at least, each once.",
        )
        self.need(self.largest_shard >= 1, "largest_shard is at least 1.")

    @property
    def most_records(self) -> int:
        """How many records a mechanism that protects single examples must have room for. The parts of named data sets
        follow from the configuration, and hold nothing private."""
        return self.largest_shard if self.data == FOLDER else 0
