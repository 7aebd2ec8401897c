"""Plain English in the code: some words stay out of it, and only documents that exist are cited."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (
    *(
        "audit",
        "benchmarks",
        "client",
        "conf",
        "docker",
        "examples",
        "fedsketch",
        "privacy",
        "replay",
    ),
    *("runtime", "secagg", "server", "sketching", "strategies", "tasks", "tests", "docs"),
)
LONGEST_LINE = 120
SUFFIXES = {".py", ".yaml", ".yml", ".toml", ".sh", ".md"}

# What a newcomer stumbles over, and what to write instead. Patterns have a bracket, so that they do not find
# themselves.
WORDS = {
    r"(?<!round[\s_])(?<!\w)trip[s]\b": "round trips (between server and devices)",
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
    found = [
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES and not {"build", "kept"} & set(path.parts)
    ]
    above = [path for pattern in ("*.md", "*.yml", "*.toml") for path in ROOT.glob(pattern)]
    files = sorted([*found, *above, ROOT / "Makefile", ROOT / "Dockerfile"])
    return {path: path.read_text() for path in files}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("word", WORDS)
def test_odd_words_stay_out(word: str) -> None:
    pattern = re.compile(word, re.IGNORECASE | re.MULTILINE)
    found = [
        f"{_name(path)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}"
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


def _prose(path: Path, text: str) -> Iterator[str]:
    """The comments and docstrings of a Python file, or the comments of another one."""
    if path.suffix != ".py":
        yield from re.findall(r"#.*", text)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize("suffix", sorted({"", *SUFFIXES} - {".py"}))
def test_lines_end_before_column_120(suffix: str) -> None:
    """Comments, settings and scripts. ruff checks Python; rows of tables have no end of their own, and neither has what
    a benchmark printed."""
    printed = ROOT / "docs" / "benchmarks.md"
    long = [
        f"{_name(path)}:{number}"
        for path, text in _texts().items()
        if path.suffix == suffix and path != printed
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > LONGEST_LINE and not line.lstrip().startswith("|")
    ]
    assert not long


def test_only_documents_of_the_repository_are_cited() -> None:
    """By their path from the root, so that everybody can open them."""
    wrong = {
        f"{_name(path)}: {cited}"
        for path, text in _texts().items()
        if path.suffix in {".py", ".yaml", ".yml", ".toml", ".sh"} and ".md" in text
        for prose in _prose(path, text)
        for cited in re.findall(r"[\w./-]+\.md\b", prose)
        if ".." not in cited
        if not (ROOT / cited).exists() and not (path.parent / cited).exists()
    }
    # A run writes this one.
    assert not {one for one in wrong if not one.endswith("MODEL_CARD.md")}
