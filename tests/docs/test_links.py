"""Links lead somewhere, and files that are named exist. Nothing is fetched."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import (
    DOCS,
    ROOT,
    by_folder,
    files,
    forge_anchor,
    headings,
    lines,
    links,
    name_of,
    pages,
    site_anchor,
)


@by_folder(pages())
def test_links_resolve(pages_of_folder: list[Path]) -> None:
    for page, target in [(one, target) for one in pages_of_folder for target in links(one)]:
        if re.match(r"[a-z]+:", target):  # of the web
            continue
        file, _, anchor = target.partition("#")
        goal = (page.parent / file).resolve() if file else page
        assert goal.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            found = {forge_anchor(heading): heading for heading in headings(goal)}
            assert anchor in found, (
                f"{name_of(page)} links to {target}, a heading that is not there"
            )
            same = site_anchor(found[anchor]) == anchor
            assert not goal.is_relative_to(DOCS) or same, f"{target} works on a forge only"


def test_pages_of_the_docs_are_reached_from_the_site() -> None:
    """By a line of their own, or by that of a folder."""
    nav = (ROOT / "mkdocs.yml").read_text() + "\n"
    missing = [
        page
        for page in (path.relative_to(DOCS) for path in DOCS.rglob("*.md"))
        if f" {page.as_posix()}\n" not in nav
        and not any(f" {folder.as_posix()}/\n" in nav for folder in page.parents)
    ]
    assert not missing, "add them to nav of mkdocs.yml"


def _text_files() -> list[Path]:
    kinds = {".py", ".yaml", ".yml", ".toml", ".md", ".sh", ".cff", ".ipynb", ""}
    return [path for path in files() if path.suffix in kinds]


def test_pages_that_anything_names_exist() -> None:
    """Comments, messages and settings send people to pages of docs/."""
    wrong = [
        f"{name_of(path)}: {named}"
        for path in _text_files()
        if not path.is_relative_to(ROOT / "tests" / "docs")
        for named in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text())
        if not (ROOT / named).exists()
    ]
    assert not wrong


@by_folder(page for page in pages() if page.is_relative_to(DOCS) or page.parent == ROOT)
def test_files_of_the_code_that_a_page_names_exist(pages_of_folder: list[Path]) -> None:
    """A page names them by their path from the root, or from the folder that it named before. NAME stands for any."""
    prose = "\n".join(line.text for page in pages_of_folder for line in lines(page))
    for named in re.findall(r"(?<![\w/.])[a-z_]+(?:/\w+)+\.(?:py|sh)\b", prose):
        known = "NAME" in named or (ROOT / named).exists() or list(ROOT.glob(f"*/{named}"))
        assert known, named
    for named in re.findall(r"`([a-z_]+/[\w/]+)/`", prose):
        ours = (ROOT / named.split("/")[0]).exists()
        assert not ours or (ROOT / named).is_dir(), named


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


def test_only_documents_of_the_repository_are_cited() -> None:
    """By their path from the root, so that everybody can open them."""
    wrong = {
        f"{name_of(path)}: {cited}"
        for path in _text_files()
        if path.suffix in {".py", ".yaml", ".yml", ".toml", ".sh"}
        if ".md" in (text := path.read_text())
        for prose in _prose(path, text)
        for cited in re.findall(r"[\w./-]+\.md\b", prose)
        if ".." not in cited
        if not (ROOT / cited).exists() and not (path.parent / cited).exists()
    }
    # A run writes this one.
    assert not {one for one in wrong if not one.endswith("MODEL_CARD.md")}
