"""The same vectors in every run, and a second process for what must not depend on the first."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def other_process() -> Callable[[str, int], str]:
    """Runs a program in a new interpreter with so many threads, and gives what it printed."""

    def run(program: str, threads: int) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    return run
