"""The documentation as tests see it: pages, headings, links and blocks of code."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = DOCS / "reference"
_FENCE = re.compile(r"^ *```(\w*)$")
_MARK = re.compile(r"^ *<!-- (run|not run|run by)(?:: (.*?))? -->$")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def files(*patterns: str) -> list[Path]:
    """The files of the repository that fit one of these patterns: those of git, and new ones that it does not ignore.
    Without git, for example in an archive, all below docs/."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = listed.stdout.splitlines() or [str(p.relative_to(ROOT)) for p in DOCS.rglob("*.md")]
    return sorted(ROOT / name for name in found if (ROOT / name).is_file())


def pages() -> list[Path]:
    """All Markdown that people read: the README, the docs, and what lies beside them."""
    return files("*.md")


def is_generated(page: Path) -> bool:
    """Whether a program wrote it: the reference, and tables of results and benchmarks."""
    return "<!-- Made by `" in page.read_text()


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def by_folder(found: Iterable[Path]) -> pytest.MarkDecorator:
    """Run a test once for each folder, with all of these pages that lie in it. There are too many pages for a test
    each."""
    folders: dict[str, list[Path]] = {}
    for page in found:
        folders.setdefault(name_of(page.parent), []).append(page)
    return pytest.mark.parametrize("pages_of_folder", folders.values(), ids=folders)


@dataclass(frozen=True)
class Block:
    """A block of code. `mark` is the comment before it: run, not run, run by; `note` what the comment says besides."""

    page: Path
    line: int
    language: str
    text: str
    mark: str | None
    note: str

    @property
    def where(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    @property
    def is_commands(self) -> bool:
        """Blocks without a language are commands in the README."""
        return self.language in ("bash", "sh", "")


@dataclass(frozen=True)
class Line:
    """A line outside of blocks."""

    page: Path
    number: int
    text: str

    @property
    def where(self) -> str:
        return f"{name_of(self.page)}:{self.number}"


def _parts(page: Path) -> Iterator[Block | Line]:
    language, start, inside = None, 0, list[str]()
    before: tuple[str | None, str] = (None, "")
    for number, text in enumerate(page.read_text().splitlines(), start=1):
        fence = _FENCE.match(text)
        if language is None and fence:
            language, start, inside = fence[1], number, []
        elif language is not None and text.strip() == "```":
            yield Block(page, start, language, "\n".join(inside) + "\n", *before)
            language, before = None, (None, "")
        elif language is not None:
            inside.append(text)
        else:
            mark = _MARK.match(text)
            before = (mark[1], mark[2] or "") if mark else (None, "")
            yield Line(page, number, text)
    assert language is None, f"{name_of(page)}:{start} opens a block that nothing closes"


def blocks(page: Path) -> list[Block]:
    return [part for part in _parts(page) if isinstance(part, Block)]


def lines(page: Path) -> list[Line]:
    return [part for part in _parts(page) if isinstance(part, Line)]


def links(page: Path) -> list[str]:
    """Targets of links and pictures. A link may be broken over two lines."""
    text = "\n".join(line.text for line in lines(page))
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", text))


def forge_anchor(heading: str) -> str:
    """The anchor that forges make of a heading."""
    plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return plain.strip().replace(" ", "-")


def site_anchor(heading: str) -> str:
    """The anchor that the site makes of it."""
    plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def headings(page: Path) -> list[str]:
    return [line.text.lstrip("#").strip() for line in lines(page) if re.match(r"#+ ", line.text)]
