"""The numbers of README and pages are those of the pages that `make results` and `make bench` write."""

import re

import pytest

from tests.docs.pages import DOCS, ROOT, pages

_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_QUOTED = re.compile(r"<!-- quoted from benchmarks\.md: (.+?) -->\n(.+?)\n(?:\n|\Z)", re.DOTALL)
README = (ROOT / "README.md").read_text()
QUOTES = [
    pytest.param(page.name, *quoted, id=f"{page.stem}-{number}")
    for page in pages()
    for number, quoted in enumerate(_QUOTED.findall(page.read_text()))
]


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


def _is_rounded(told: str, measured: float) -> bool:
    """Whether a number as it is told, such as 1.5 or 94 (kB), is the measured one, or a thousandth of it."""
    decimals = len(told.partition(".")[2])
    value = float(told.replace(",", ""))
    return any(abs(value - m) <= 0.5001 * 10**-decimals for m in (measured, measured / 1000))


def test_the_quotes_are_found() -> None:
    """A change of the comments must not make the next test empty."""
    assert len(QUOTES) >= 3


@pytest.mark.parametrize(("page", "section", "text"), QUOTES)
def test_quoted_numbers_are_those_of_the_section(page: str, section: str, text: str) -> None:
    """A comment names the section of docs/benchmarks.md from which the next list or table quotes."""
    _, _, rest = (DOCS / "benchmarks.md").read_text().partition(f"\n## {section}\n")
    assert rest, f"{page}: docs/benchmarks.md has no such section"
    found = re.findall(_NUMBER, rest.split("\n## ")[0])
    measured = [float(number.replace(",", "")) for number in found]
    for told in re.findall(rf"(?<![\w]){_NUMBER}", text):
        assert any(_is_rounded(told, one) for one in measured), f"{page}: {told}"
