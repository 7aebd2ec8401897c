"""How a simulation in one process keeps its memory from round to round, so that rounds do not wait for it.

Rounds allocate and free the same tensors again and again. By default, the C library gives large blocks back to the
operating system, which must clear each page before it hands it out again: about a tenth of the time of `runtime=cohort`
with a small model. And Python's search for unreachable objects visits everything that was imported, for a fifth of a
second each time.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Parameters of `mallopt` in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 1 << 30  # bytes; larger blocks still go back to the operating system


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory for the next round, and leave existing objects out of Python's searches meanwhile."""
    _keep_freed_blocks()
    if gc.get_freeze_count():  # the caller has done so
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _keep_freed_blocks() -> None:
    """Tell the C library, for the rest of the process. Libraries other than glibc are left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _LARGEST)
