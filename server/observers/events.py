"""Progress as events in a log: what a ServerApp prints on a server, and how a submitter on another machine reads it.

Every event is one line: "fedsketch", the mark of the run, and a JSON object. The mark is random and is printed before
any device is asked, so that nothing that a device brings into the log can be taken for an event. The SuperLink shows a
run's log to everybody who may submit runs, so the log contains nothing that is not in the run folder. The files of a
finished run may follow as lines of the same kind.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsketch.conf import Config
from fedsketch.server.run_folder import RunFolder

_FIRST = re.compile(r"fedsketch marks its events with ([0-9a-f]{32})\n?")
_PART = 128 * 1024  # bytes of a file in one line, before base64
LONGEST_LINE = 16 * 1024 * 1024  # characters; a summary has a number for each client and class
# Larger files stay on the server, because the SuperLink keeps logs in its database.
LARGEST_FILE = 32 * 1024 * 1024


@dataclass(frozen=True)
class FilePart:
    """A part of a file. `data` is compressed and in base64, and the last part is marked."""

    name: str
    data: str
    last: bool

    def content(self) -> bytes:
        """Return the part. ValueError if it is none: a short line can hold very much, compressed."""
        try:
            content = zlib.decompressobj().decompress(base64.b64decode(self.data), _PART + 1)
        except zlib.error as error:
            raise ValueError("This part of a file is damaged.") from error
        if len(content) > _PART:
            raise ValueError("This part of a file is larger than a part may be.")
        return content


class StreamProgress:
    """A `Display` that prints one line per event, and the files of the run at the end if asked to."""

    def __init__(self, *, send_files: bool) -> None:
        self._send_files = send_files
        self._mark = secrets.token_hex(16)
        _print_line(f"fedsketch marks its events with {self._mark}")

    def notes(self, sentence: str) -> None:
        """Print something that the user should know."""
        self._tell("note", {"told": sentence})

    def began(self, config: Config, done: int, guarantee: str) -> None:
        self._tell("began", {"done": done, "guarantee": guarantee})

    def round_done(self, row: dict[str, Any]) -> None:
        self._tell("played", {"row": row})

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        if self._send_files:
            for part in _parts(report.parent):
                self._tell("file", asdict(part))
        self._tell("ended", {"summary": summary, "report": str(report)})

    def _tell(self, kind: str, facts: dict[str, Any]) -> None:
        _print_line(f"{_start(self._mark)}{json.dumps({'event': kind, **facts})}")


class EventReader:
    """Reads the events of one log from its first line on."""

    def __init__(self) -> None:
        self._start: str | None = None  # how the lines of events begin, once the mark is known

    def read(self, line: str) -> tuple[str, dict[str, Any]] | None:
        """Return the kind and the facts of an event; None for any other line of the log."""
        if self._start is None:
            first = _FIRST.fullmatch(line)
            self._start = first and _start(first[1])
            return None
        if not line.startswith(self._start):
            return None
        try:
            event = json.loads(line.removeprefix(self._start))
            return str(event.pop("event")), event
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # cut off by a kill


def _start(mark: str) -> str:
    return f"fedsketch {mark}> "


def _print_line(line: str) -> None:
    # One write per line, because other threads print too.
    print(f"{line}\n", end="", flush=True)


def _parts(folder: Path) -> Iterator[FilePart]:
    for path in RunFolder(folder).results():
        if path.stat().st_size > LARGEST_FILE:
            continue
        name = path.relative_to(folder)
        with path.open("rb") as file:
            piece = file.read(_PART)
            while True:
                following = file.read(_PART)
                data = base64.b64encode(zlib.compress(piece)).decode()
                yield FilePart(name.as_posix(), data, last=not following)
                if not following:
                    break
                piece = following
