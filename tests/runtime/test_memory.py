"""A simulation in one process keeps freed memory, and spares Python's searches what exists already."""

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fedsketch.runtime.memory import kept_memory

# Page faults of the later of some rounds that allocate and free 60 MB, with and without `kept_memory`.
_FAULTS = """
import resource, sys
from contextlib import nullcontext
import numpy as np
from fedsketch.runtime.memory import kept_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def play(rounds):
    for _ in range(rounds):
        blocks = [np.ones(size << 18, dtype=np.float32) for size in (10, 20, 30)]
        del blocks

with kept_memory() if sys.argv[1] == "kept" else nullcontext():
    play(2)
    before = faults()
    play(5)
    print(faults() - before)
"""


@pytest.fixture(autouse=True)
def _nothing_frozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def _faults(how: str) -> int:
    command = [sys.executable, "-c", _FAULTS, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="only glibc can be told")
def test_memory_of_the_last_round_is_used_again() -> None:
    assert 20 * _faults("kept") < _faults("given back")


def test_what_exists_is_left_out_of_searches_until_the_end() -> None:
    assert gc.get_freeze_count() == 0
    with kept_memory():
        assert gc.get_freeze_count() > 0
    with pytest.raises(ZeroDivisionError), kept_memory():
        _ = 1 / 0
    assert gc.get_freeze_count() == 0


def test_what_the_caller_has_frozen_stays_so() -> None:
    gc.freeze()
    with kept_memory():
        pass
    assert gc.get_freeze_count() > 0
