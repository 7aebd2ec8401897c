"""What the site needs beyond the pages: links that leave docs/ work on a forge, and would lead nowhere on the site."""

import re
from typing import Any

# A link to a file outside of docs/, from a page at the top or in a folder of it.
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:[A-Z][A-Za-z_.]*\.md|LICENSE|examples/[^)]*)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Such a link becomes the name of the file."""
    return _OUTSIDE.sub(r"`\1`", markdown)
