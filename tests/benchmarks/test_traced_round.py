"""The page about the code names the frames that a traced round has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_page_has_the_frames_of_a_traced_round_in_their_files() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "traced_round.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    (chain,) = re.findall(r"^  (run > .*)$", done.stdout, re.MULTILINE)
    traced = [name.rpartition("<locals>.")[2] for name in chain.split(" > ")]
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("| frames | file |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.strip().splitlines()[1:]]
    assert traced == [name for names, _ in rows for name in re.findall(r"`([^`]+)`", names)]
    for names, files in rows:
        texts = [(ROOT / path).read_text() for path in re.findall(r"`([^`]+)`", files)]
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", names):
            assert any(re.search(rf"^ *def {name}\b", text, re.MULTILINE) for text in texts), name
