"""Plain English: some words stay out of code and pages, and lines are short."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, files, name_of

LONGEST_LINE = 120
SUFFIXES = {".py", ".yaml", ".yml", ".toml", ".sh", ".md", ""}

# What a newcomer stumbles over, and what to write instead. Patterns have a bracket, so that they do not find
# themselves.
WORDS = {
    r"(?<!round[\s_-])(?<!two[\s_-])(?<!\w)trip[s]\b": "round trips (between server and devices)",
    r"\bgone on wit[h]\b": "resumed, continued",
    r"\b(?:un)?mende[d]\b": "corrected, repaired",
    r"deares[t]\b": "most expensive",
    r"complaints are exception[s]": "raises instead of logging",
    r"(?:^|[\W_])dea[f](?:ness)?(?:[\W_]|$)": "ignores a signal, does not listen",
    r"last_word[s]|\blast word[s]\b": "the end of the log",
    r"can be ha[d] again": "can be reproduced",
    r"list of flaw[s]": "say which flaw it is",
}


@cache
def _texts() -> dict[Path, str]:
    found = [path for path in files() if path.suffix in SUFFIXES and "kept" not in path.parts]
    assert found
    return {path: path.read_text() for path in found}


@pytest.mark.parametrize("word", WORDS)
def test_odd_words_stay_out(word: str) -> None:
    pattern = re.compile(word, re.IGNORECASE | re.MULTILINE)
    found = [
        f"{name_of(path)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}"
        for path, text in _texts().items()
        for match in pattern.finditer(text)
    ]
    assert not found, f"write instead: {WORDS[word]}"


@pytest.mark.parametrize(
    "example",
    [
        *(
            "five tri|ps",
            "a run that is gone o|n with",
            "an unmen|ded failure",
            "the deare|st of them",
        ),
        *("whose complaints are excep|tions", "_refuse_de|af_address", "las|t_words"),
        *("the table can be h|ad again", "the list of fl|aws"),
    ],
)
def test_the_patterns_find_what_they_are_for(example: str) -> None:
    """The bars keep the examples from being found in this file."""
    text = example.replace("|", "")
    assert sum(re.search(word, text, re.IGNORECASE) is not None for word in WORDS) == 1


@pytest.mark.parametrize("suffix", sorted(SUFFIXES - {".py"}))
def test_lines_end_before_column_120(suffix: str) -> None:
    """Comments, settings and scripts. ruff checks Python; rows of tables have no end of their own, and neither has what
    a benchmark printed."""
    printed = DOCS / "benchmarks.md"
    long = [
        f"{name_of(path)}:{number}"
        for path, text in _texts().items()
        if path.suffix == suffix and path != printed
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > LONGEST_LINE and not line.lstrip().startswith("|")
    ]
    assert not long
