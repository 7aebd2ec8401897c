"""`runtime=cohort` holds nothing of the model's size for clients that are not asked."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cohort.py"


def _peak(clients: int) -> int:
    command = [sys.executable, str(SCRIPT), "--memory-of", str(clients)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
def test_ten_thousand_clients_need_the_memory_of_a_thousand() -> None:
    """A model of 25,450 parameters for each of the 9,000 others would be 916 MB; what tells them apart took 21 MB."""
    few, many = _peak(1_000), _peak(10_000)
    assert many - few < 60e6
