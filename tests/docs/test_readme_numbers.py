"""The README's numbers are those of the pages that `make results` and `make bench` write."""

import re

from tests.docs.pages import DOCS, ROOT

_NUMBER = r"\d[\d,]*(?:\.\d+)?"
README = (ROOT / "README.md").read_text()


def _rows(text: str, first: str) -> list[list[str]]:
    """The cells of all rows of tables whose first cell begins so."""
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in row] for row in rows if row[0].strip().startswith(first)]


def test_accuracies_and_bytes_are_those_of_the_results() -> None:
    results = (DOCS / "results.md").read_text()
    for preset in ("dp_fedavg", "dome", "dome_public", "fed_sgm"):
        (told,) = _rows(README, f"`{preset}`,")
        accuracies, _, prices = _rows(results, f"`{preset}`")  # of two data sets, and what it costs
        assert told[2:] == accuracies[3:], preset
        assert told[1] == ", ".join(prices[5:7]), preset
        assert f"{prices[4]} numbers" in told[0], preset


def test_speeds_are_those_of_the_benchmarks() -> None:
    table = README.split("**Speed**")[1].split("\n## ")[0]
    benchmarks = (DOCS / "benchmarks.md").read_text()
    numbers = re.findall(_NUMBER, " ".join(row for row in table.splitlines() if "|" in row))
    measured = {float(number.replace(",", "")) for number in re.findall(_NUMBER, benchmarks)}
    for number in numbers:
        value = float(number.replace(",", ""))
        assert any(abs(value - one) <= max(0.5, 0.01 * value) for one in measured), number
