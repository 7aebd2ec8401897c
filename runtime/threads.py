"""How many threads torch uses for one simulated client. A number that the user has set in OMP_NUM_THREADS is left alone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "OMP_NUM_THREADS"  # what torch, MKL and OpenBLAS read when they are imported

# Parameters from which on two threads may pay; `python benchmarks/threads.py` measures it. On two idle cores a gradient with two threads
# took, over one thread: mlp 32 to 1024 (up to 0.8 million parameters) 0.95 to 1.28 times as long, mlp 2048 and 4096 (1.6 and 3.3
# million) 0.92 and 0.97 times, and the convolutions of cnn and resnet 0.77 and 0.67 times. On cores that others use too, two threads
# made all of them longer, up to 14 times. Who has idle cores and a convolutional model sets OMP_NUM_THREADS=2.
LARGE_MODEL = 1_000_000


@contextmanager
def fitting_threads(parameters: int) -> Iterator[None]:
    """One thread for a model of fewer than `LARGE_MODEL` parameters; afterwards as many as before."""
    import torch

    before = torch.get_num_threads()
    if VARIABLE not in os.environ and parameters < LARGE_MODEL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def client_variables(cpus: float) -> dict[str, str]:
    """For the process of a client that has so many CPUs to itself."""
    return {VARIABLE: os.environ.get(VARIABLE, str(max(1, int(cpus))))}
