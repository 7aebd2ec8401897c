"""Pages that can be read: short lines, short pages, tables of phrases, and a first sentence that says who needs it."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import (
    DOCS,
    ROOT,
    blocks,
    is_generated,
    lines,
    name_of,
    pages,
)

LONGEST_LINE = 120
LONGEST_CELL = 100
MOST_WORDS = 2300  # ten minutes: adults read 238 words of English a minute (Brysbaert 2019)
README_LINES = 150  # three screens
ALL = [page for page in pages() if page.is_relative_to(DOCS)]
BY_HAND = [page for page in ALL if not is_generated(page)]
README = ROOT / "README.md"
READ = [*ALL, README]


def _is_table(text: str) -> bool:
    return text.lstrip().startswith("|")


@pytest.mark.parametrize("page", READ, ids=name_of)
def test_lines_of_prose_are_short(page: Path) -> None:
    long = [
        line.where
        for line in lines(page)
        if len(line.text) > LONGEST_LINE and not _is_table(line.text)
    ]
    assert not long


@pytest.mark.parametrize("page", READ, ids=name_of)
def test_lines_of_code_are_short(page: Path) -> None:
    """What a benchmark printed stays as it was."""
    for block in blocks(page):
        if block.language == "text" and is_generated(page):
            continue
        assert max(map(len, block.text.splitlines()), default=0) <= LONGEST_LINE, block.where


@pytest.mark.parametrize("page", READ, ids=name_of)
def test_a_cell_of_a_table_holds_a_phrase(page: Path) -> None:
    """Links count by what is shown."""
    for line in lines(page):
        if _is_table(line.text):
            shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.text).replace("\\|", "/")
            for cell in shown.strip().strip("|").split("|"):
                assert len(cell.strip()) <= LONGEST_CELL, f"{line.where}: {cell.strip()[:60]}..."


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_a_page_reads_in_ten_minutes(page: Path) -> None:
    """The reference too. What has no letter and no digit, such as the lines of a table, is not read."""
    words = [word for word in page.read_text().split() if re.search(r"\w", word)]
    assert len(words) <= MOST_WORDS


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_a_page_starts_with_who_needs_it(page: Path) -> None:
    title, rest = page.read_text().split("\n", 1)
    assert title.startswith("# ")
    first = re.sub(r"<!--.*?-->", "", rest).strip()
    assert first.startswith("For "), "say who needs the page, and what they can do after it"


@pytest.mark.parametrize("page", BY_HAND, ids=name_of)
def test_lists_and_tables_begin_after_an_empty_line(page: Path) -> None:
    """Forges do not need it; the site does, and shows one long paragraph without."""
    before = ""
    for line in lines(page):
        begins = re.match(r"[-*] |\d+\. |\|", line.text)
        prose = before and not re.match(r" *([-*] |\d+\. |\||#|<!--)|  ", before)
        assert not (begins and prose), line.where
        before = line.text


@pytest.mark.parametrize("page", BY_HAND, ids=name_of)
def test_blocks_of_code_name_their_language(page: Path) -> None:
    for block in blocks(page):
        assert block.language, block.where


def test_the_readme_fits_three_screens() -> None:
    """Comments are not shown."""
    shown = [line for line in README.read_text().splitlines() if not line.startswith("<!--")]
    assert len(shown) <= README_LINES
