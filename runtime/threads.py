"""How many threads torch uses for one simulated client. If the user has set OMP_NUM_THREADS, it is left alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "OMP_NUM_THREADS"  # read by torch, MKL and OpenBLAS when they are imported

# The number of parameters from which two threads may be faster; `python benchmarks/threads.py` measures it. On two idle
# cores a gradient with two threads took, compared with one thread: mlp 32 to 1024 (up to 0.8 million parameters) 0.95
# to 1.28 times as long, mlp 2048 and 4096 (1.6 and 3.3 million) 0.92 and 0.97 times, and the convolutions of cnn and
# resnet 0.77 and 0.67 times. On busy cores, two threads were slower for all of them, up to 14 times. If you have idle
# cores and a convolutional model, set OMP_NUM_THREADS=2.
LARGE_MODEL = 1_000_000


@contextmanager
def fitting_threads(parameters: int) -> Iterator[None]:
    """Use one thread for a model with fewer than `LARGE_MODEL` parameters; restores the number of threads
    afterwards."""
    import torch

    before = torch.get_num_threads()
    if VARIABLE not in os.environ and parameters < LARGE_MODEL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def client_variables(cpus: float) -> dict[str, str]:
    """Return the environment variables of a client's process that has this many CPUs for itself."""
    return {VARIABLE: os.environ.get(VARIABLE, str(max(1, int(cpus))))}
