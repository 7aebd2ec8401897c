"""Pages that can be read: short lines, short pages, tables of phrases, and a first sentence that says who needs it."""

import re
from pathlib import Path

from tests.docs.pages import (
    DOCS,
    ROOT,
    blocks,
    by_folder,
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


@by_folder(READ)
def test_lines_of_prose_are_short(pages_of_folder: list[Path]) -> None:
    long = [
        line.where
        for page in pages_of_folder
        for line in lines(page)
        if len(line.text) > LONGEST_LINE and not _is_table(line.text)
    ]
    assert not long


@by_folder(READ)
def test_lines_of_code_are_short(pages_of_folder: list[Path]) -> None:
    """What a benchmark printed stays as it was."""
    for page in pages_of_folder:
        for block in blocks(page):
            if block.language == "text" and is_generated(page):
                continue
            assert max(map(len, block.text.splitlines()), default=0) <= LONGEST_LINE, block.where


@by_folder(READ)
def test_a_cell_of_a_table_holds_a_phrase(pages_of_folder: list[Path]) -> None:
    """Links count by what is shown."""
    for line in (line for page in pages_of_folder for line in lines(page)):
        if _is_table(line.text):
            shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.text).replace("\\|", "/")
            for cell in shown.strip().strip("|").split("|"):
                assert len(cell.strip()) <= LONGEST_CELL, f"{line.where}: {cell.strip()[:60]}..."


@by_folder(ALL)
def test_a_page_reads_in_ten_minutes(pages_of_folder: list[Path]) -> None:
    """The reference too. What has no letter and no digit, such as the lines of a table, is not read."""
    for page in pages_of_folder:
        words = [word for word in page.read_text().split() if re.search(r"\w", word)]
        assert len(words) <= MOST_WORDS, name_of(page)


@by_folder(ALL)
def test_a_page_starts_with_who_needs_it(pages_of_folder: list[Path]) -> None:
    for page in pages_of_folder:
        title, rest = page.read_text().split("\n", 1)
        assert title.startswith("# "), name_of(page)
        first = re.sub(r"<!--.*?-->", "", rest).strip()
        assert first.startswith("For "), (
            f"{name_of(page)}: say who needs the page, and what they can do after it"
        )


@by_folder(BY_HAND)
def test_lists_and_tables_begin_after_an_empty_line(pages_of_folder: list[Path]) -> None:
    """Forges do not need it; the site does, and shows one long paragraph without."""
    for page in pages_of_folder:
        before = ""
        for line in lines(page):
            begins = re.match(r"[-*] |\d+\. |\|", line.text)
            prose = before and not re.match(r" *([-*] |\d+\. |\||#|<!--)|  ", before)
            assert not (begins and prose), line.where
            before = line.text


@by_folder(BY_HAND)
def test_blocks_of_code_name_their_language(pages_of_folder: list[Path]) -> None:
    for block in (block for page in pages_of_folder for block in blocks(page)):
        assert block.language, block.where


def test_the_readme_fits_three_screens() -> None:
    """Comments are not shown."""
    shown = [line for line in README.read_text().splitlines() if not line.startswith("<!--")]
    assert len(shown) <= README_LINES
