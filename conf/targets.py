"""What the targets of examples are."""

from enum import StrEnum


class Targets(StrEnum):
    """The form of the targets in `Examples`."""

    classes = "classes"  # the number of a class, int64 (N,)
    numbers = "numbers"  # a number to predict, float32 (N,)
    labels = "labels"  # several numbers, such as one 0 or 1 per label, float32 (N, L)
