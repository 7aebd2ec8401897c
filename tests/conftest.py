"""One thread per process: arrays are small here, and processes that share two cores would wait for each other's threads."""

import os

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is imported, and for the processes that tests start
