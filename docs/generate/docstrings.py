"""Docstrings for the site. They are plain text with single backticks, and mkdocstrings expects Markdown.

Names of the libraries in backticks become links, examples become blocks of code, and enumerations list their values.
"""

import re
from collections.abc import Iterator
from typing import Any

import griffe

_CODE = re.compile(r"(``[^`]*``|`[^`]*`)")
_NAME = re.compile(r"`([A-Z]\w+)(?:\.\w+)*`")


class Docstrings(griffe.Extension):
    """Rewrites the docstrings of fedsketch once, when its source has been read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite the docstrings of everything that is defined in the package, library by library."""
        for library in (member for member in pkg.members.values() if not member.is_alias):
            exported = (str(name) for name in library.exports or ())
            shown = {name for name in exported if library[name].docstring}
            for one in _objects(library):
                if one.is_class and any("Enum" in str(base) for base in one.bases):
                    _tell_values(one)
                if one.docstring:
                    one.docstring.value = _markdown(one.docstring.value, library.path, shown)


def _objects(parent: griffe.Object) -> Iterator[griffe.Object]:
    """The object and everything in it that is defined there, not imported."""
    yield parent
    for member in parent.members.values():
        if not member.is_alias:
            yield from _objects(member)


def _tell_values(enumeration: griffe.Object) -> None:
    """Add the values to the docstring, because members without a docstring of their own are not shown."""
    values = [
        f"`{name}` = `{one.value}`" for name, one in enumeration.members.items() if one.is_attribute
    ]
    if values and enumeration.docstring:
        enumeration.docstring.value += f"\n\nValues: {', '.join(values)}."


def _markdown(text: str, library: str, shown: set[str]) -> str:
    """The docstring in Markdown. Paragraphs that are examples, or indented, are code."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith(">>>"):
            paragraphs.append(f"```pycon\n{paragraph}\n```")
        elif paragraph.startswith("    "):
            paragraphs.append(paragraph)
        else:
            prose = re.sub(r"::$", ":", paragraph)
            paragraphs.append("".join(_parts(prose, library, shown)))
    return "\n\n".join(paragraphs)


def _parts(prose: str, library: str, shown: set[str]) -> Iterator[str]:
    """Code with links to what is shown, and text in which `<` and `[` mean nothing."""
    for part in _CODE.split(prose):
        name = _NAME.fullmatch(part)
        if name and name[1] in shown:
            yield f"[{part}][{library}.{name[1]}]"
        elif part.startswith("`"):
            yield part
        else:
            yield part.replace("<", "&lt;").replace("[", r"\[")
