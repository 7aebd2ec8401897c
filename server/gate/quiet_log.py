"""A log that strangers can neither fill nor forge: one clean line per event, and few of them per minute."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from typing import TextIO

from fedsketch.secagg import clean_text

MOST = 20  # lines per minute
MOST_OF_A_KIND = 5  # so that one kind of event does not hide the others
_MINUTE = 60.0


class QuietHandler(logging.Handler):
    """Writes records as single lines without tracebacks. What is above the numbers for a minute is only counted."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream
        self._began = -_MINUTE
        self._kinds: Counter[str] = Counter()  # by the text without its values
        self._counted = 0

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now - self._began >= _MINUTE:
            if self._counted:
                self._write(logging.WARNING, f"{self._counted} more lines were not written.")
            self._began, self._counted = now, 0
            self._kinds.clear()
        kind = str(record.msg)
        if self._kinds[kind] >= MOST_OF_A_KIND or self._kinds.total() >= MOST:
            self._counted += 1
            return
        self._kinds[kind] += 1
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text = f"{text} ({type(error).__name__}: {error})"
        self._write(record.levelno, text)

    def _write(self, level: int, text: str) -> None:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        line = f"{when} {logging.getLevelName(level)} {clean_text(text)}"
        print(line, file=self._stream or sys.stderr, flush=True)


def install() -> None:
    """Make it the only handler of this process."""
    root = logging.getLogger()
    root.handlers[:] = [QuietHandler()]
    root.setLevel(logging.WARNING)
