"""What the site needs beyond the pages.

Links that leave docs/ work on a forge such as GitHub, but would lead nowhere on the site. And pages that programs
write from measurements are in the menu as soon as they exist.
"""

import re
from pathlib import Path
from typing import Any

# A link to a file outside of docs/, from a page at the top or in a folder of it.
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:[A-Z][A-Za-z_.]*\.md|LICENSE|examples/[^)]*)\)")
_MEASURED = ("results.md", "benchmarks.md")


def on_config(config: Any) -> Any:
    """Leaves measured pages that are not there out of the menu."""
    there = {name for name in _MEASURED if (Path(config["docs_dir"]) / name).exists()}
    missing = set(_MEASURED) - there
    config["nav"] = [
        entry for entry in config["nav"] if not set(map(str, entry.values())) & missing
    ]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A link that leaves docs/ becomes the name of the file."""
    return _OUTSIDE.sub(r"`\1`", markdown)
