"""Refuses tensors that are larger than this machine's memory, before they are allocated. The allocation itself may
fail late, or succeed and then end the process."""

from __future__ import annotations

import os

from fedsketch.errors import TaskError

_BYTES = 4  # bytes of a number in float32


def refuse_beyond_memory(scalars: int, what: str, error: type[TaskError]) -> None:
    """Raise `error` if this many numbers need more than the whole memory. `what` says which keys make them fewer."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if scalars * _BYTES > memory:
        raise error(
            f"{scalars:.3g} numbers do not fit into the {memory / 1e9:.3g} GB of this machine: {what}."
        )
