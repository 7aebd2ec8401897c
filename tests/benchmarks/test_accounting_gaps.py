"""How far stated epsilons may be from the truth: the page says what the command prints."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from accounting_gaps import gaps

from tests.docs.pages import DOCS

PAGE = (DOCS / "explanation" / "accounting.md").read_text()


def _numbers(line: str) -> tuple[str, list[float]]:
    release, *numbers = line.strip("| %").split(" | ")
    return release, [float(number) for number in numbers]


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_page_says_what_the_command_prints(quick: bool) -> None:
    """Up to the last digit, which rounding decides: 0.01 of an epsilon, 0.1 %."""
    told = dict(
        _numbers(line)
        for line in re.findall(r"^\| .*\d %? ?\|$", PAGE, re.MULTILINE)
        if " noise " in line
    )
    printed = [_numbers(gap.line) for gap in gaps(quick)]
    for release, numbers in printed:
        assert told[release][:2] == pytest.approx(numbers[:2], abs=0.011), release
        assert told[release][2] == pytest.approx(numbers[2], abs=0.11), release
    if not quick:
        assert len(told) == len(printed)


def test_what_is_stated_is_never_below_what_an_attack_reaches() -> None:
    for gap in gaps(quick=True):
        assert gap.reached <= gap.stated * 1.0005
