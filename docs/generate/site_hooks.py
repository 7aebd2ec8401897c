"""What the site needs beyond the pages.

Links that leave docs/ work on a forge such as GitHub, but would lead nowhere on the site. Pages that programs write
from measurements are in the menu as soon as they exist. And a folder of generated pages is one entry of mkdocs.yml.
"""

import re
from pathlib import Path
from typing import Any

# A link to a file outside of docs/, from a page at the top or in a folder of it.
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:[A-Z][A-Za-z_.]*\.md|LICENSE|examples/[^)]*)\)")
_MEASURED = ("results.md", "benchmarks.md")


def on_config(config: Any) -> Any:
    """Leaves measured pages that are not there out of the menu, and opens folders."""
    docs = Path(config["docs_dir"])
    missing = {name for name in _MEASURED if not (docs / name).exists()}
    config["nav"] = [
        _opened(entry, docs)
        for entry in config["nav"]
        if not set(map(str, entry.values())) & missing
    ]
    return config


def _opened(entry: Any, docs: Path) -> Any:
    """An entry of the menu, in which the name of a folder is replaced by the folder's pages."""
    if isinstance(entry, dict):
        return {title: _opened(below, docs) for title, below in entry.items()}
    if isinstance(entry, list):
        return [_opened(one, docs) for one in entry]
    return _pages_of(docs / entry, docs) if entry.endswith("/") else entry


def _pages_of(folder: Path, docs: Path) -> list[str]:
    """The index, then the other pages by name."""
    pages = sorted(folder.glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
    return [page.relative_to(docs).as_posix() for page in pages]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A link that leaves docs/ becomes the name of the file."""
    return _OUTSIDE.sub(r"`\1`", markdown)
