"""Text that a device wrote, made safe for logs, files and screens. Whoever takes text from a reply cleans it here."""

from __future__ import annotations


def clean_text(text: object, longest: int = 300) -> str:
    """Return one line of printable characters, not longer than this. Everything else becomes a space: newlines, which
    could begin a forged line of a log, and controls, which could change what a terminal shows."""
    # Cut first, because the text may be as long as a message.
    start = text[: 4 * longest] if isinstance(text, str | bytes) else f"a {type(text).__name__}"
    printable = "".join(sign if sign.isprintable() else " " for sign in str(start))
    return " ".join(printable.split())[:longest]
