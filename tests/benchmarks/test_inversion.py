"""The attack of benchmarks/inversion.py plays to its end; what it finds in a few steps says nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "inversion.py"


@pytest.mark.slow
def test_the_attack_writes_its_table_and_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    short = ["--images", "1", "--steps", "2", "--starts", "1", "--page", str(page)]
    played = subprocess.run([sys.executable, SCRIPT, *short], capture_output=True, text=True)
    assert f"Pictures: {page}" in played.stdout.replace("\n", ""), played.stderr
    assert "<img" in page.read_text() or "<svg" in page.read_text()
