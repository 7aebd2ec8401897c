"""How many threads torch uses for one simulated client. A number that the user has set in OMP_NUM_THREADS is left alone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "OMP_NUM_THREADS"  # what torch, MKL and OpenBLAS read when they are imported

# Parameters from which on two threads may pay; `python benchmarks/threads.py` measures it. So far it was measured only on two cores that
# others used too. With about three processes a core, two threads made a round of mlp 32, 512 and 1024 (up to 0.8 million parameters) 1.2
# to 3 times as long, and a round of mlp 2048 and 4096 (1.6 and 3.3 million) 0.9 times as long. With five, they made every update longer,
# by 1.4 to 14 times, those of cnn and resnet too.
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
