"""The forms that the targets of examples can have."""

from __future__ import annotations

from enum import StrEnum


class Targets(StrEnum):
    """The form of the targets in `Examples`."""

    CLASSES = "classes"  # the index of a class, int64 (N,)
    NUMBERS = "numbers"  # a number to predict, float32 (N,)
    LABELS = "labels"  # several numbers, such as one 0 or 1 per label, float32 (N, L)
