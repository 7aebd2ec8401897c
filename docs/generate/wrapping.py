"""Prose for Markdown: lines that end before column 120."""

import re
import textwrap

_WIDTH = 116
NOTE = "<!-- Made by `python docs/generate`: change the code that it describes, not this page. -->"


def wrapped(text: str, first: str = "", rest: str = "") -> str:
    """One paragraph; `first` and `rest` go before its first line and the others."""
    return textwrap.fill(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def item(text: str) -> str:
    """One item of a list."""
    return wrapped(text, "- ", "  ")


def page(title: str, intro: str, *sections: str) -> str:
    """A whole page, with the note that it is made by a program."""
    return "\n\n".join([f"# {title}", NOTE, wrapped(intro), *sections]) + "\n"


def escaped(text: str) -> str:
    """Text in which nothing but `code` has a meaning in Markdown."""
    parts = re.split(r"(``[^`]*``|`[^`]*`)", text)
    for place in range(0, len(parts), 2):
        parts[place] = re.sub(r"([*_<>|\[\]])", r"\\\1", parts[place])
    return "".join(parts)
