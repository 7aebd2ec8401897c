"""Links lead somewhere, and files that are named exist. Nothing is fetched."""

import re
import subprocess
from pathlib import Path

from tests.docs.pages import (
    DOCS,
    ROOT,
    by_folder,
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
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    kinds = {".py", ".yaml", ".yml", ".toml", ".md", ".sh", ".cff", ".ipynb", ""}
    found = [ROOT / name for name in listed.stdout.splitlines()]
    return [path for path in found if path.suffix in kinds and path.is_file()]


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


@by_folder(page for page in pages() if page.is_relative_to(DOCS))
def test_files_of_the_code_that_a_page_names_exist(pages_of_folder: list[Path]) -> None:
    """A page names them by their path from the root, or from the folder that it named before."""
    prose = "\n".join(line.text for page in pages_of_folder for line in lines(page))
    for named in re.findall(r"(?<![\w/.])[a-z_]+(?:/\w+)+\.(?:py|sh)\b", prose):
        assert (ROOT / named).exists() or list(ROOT.glob(f"*/{named}")), named


def test_pictures_are_small_and_made_by_the_script() -> None:
    """The SVG files are what the script draws; whoever changes one by hand loses it."""
    import runpy

    made = runpy.run_path(str(DOCS / "images" / "make_pictures.py"))
    drawn = {"round": made["round_picture"]()} | {
        f"strategy_{name}": text for name, text in made["PICTURES"].items()
    }
    for name, text in drawn.items():
        assert (DOCS / "images" / f"{name}.svg").read_text() == text, "run make_pictures.py"
        assert "prefers-color-scheme: dark" in text
    for picture in (DOCS / "images").glob("*.png"):
        assert picture.stat().st_size < 300_000, picture.name
