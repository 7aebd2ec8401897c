"""Refuses what this machine cannot hold, before it is asked for: an allocation may fail late, or be granted and end the
process."""

import os

from fedsketch.tasks.errors import TaskError

_BYTES = 4  # of a number in float32


def refuse_beyond_memory(numbers: int, what: str, error: type[TaskError]) -> None:
    """Raise `error` if so many numbers are more than the whole memory; `what` says what they are and which keys make
    them fewer."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if numbers * _BYTES > memory:
        raise error(
            f"{numbers:.3g} numbers do not fit into the {memory / 1e9:.3g} GB of this machine: {what}."
        )
