"""Progress as events in a log: what a ServerApp prints on a server, and how a submitter on another machine reads it.

Every event is one line: a mark, then a JSON object. The SuperLink shows a run's log to everybody who may submit runs,
so the log contains nothing that is not in the run folder. The files of a finished run may follow as lines of the same
kind.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsketch.conf import Config
from fedsketch.server.run_folder import RunFolder

_MARK = "fedsketch> "
_PART = 128 * 1024  # bytes of a file in one line, before base64
# Larger files stay on the server, because the SuperLink keeps logs in its database.
LARGEST_FILE = 32 * 1024 * 1024


@dataclass(frozen=True)
class Part:
    """A part of a file. `data` is compressed and in base64, and the last part is marked."""

    name: str
    data: str
    last: bool

    def content(self) -> bytes:
        return zlib.decompress(base64.b64decode(self.data))


class StreamProgress:
    """An `Observer` that prints one line per event, and the files of the run at the end if asked to."""

    def __init__(self, *, send_files: bool) -> None:
        self._send_files = send_files

    def notes(self, sentence: str) -> None:
        """Print something that the user should know before the run begins."""
        _print_event("note", {"told": sentence})

    def began(self, config: Config, done: int, guarantee: str) -> None:
        _print_event("began", {"done": done, "guarantee": guarantee})

    def round_done(self, row: dict[str, Any]) -> None:
        _print_event("played", {"row": row})

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        if self._send_files:
            for part in _parts(report.parent):
                _print_event("file", asdict(part))
        _print_event("ended", {"summary": summary, "report": str(report)})


def read_event(line: str) -> tuple[str, dict[str, Any]] | None:
    """Return the kind and the facts of an event; None for any other line of the log."""
    if not line.startswith(_MARK):
        return None
    try:
        event = json.loads(line.removeprefix(_MARK))
        return str(event.pop("event")), event
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # cut off by a kill


def _print_event(kind: str, facts: dict[str, Any]) -> None:
    # One write per line, because other threads print too.
    print(f"{_MARK}{json.dumps({'event': kind, **facts})}\n", end="", flush=True)


def _parts(folder: Path) -> Iterator[Part]:
    for path in RunFolder(folder).results():
        if path.stat().st_size > LARGEST_FILE:
            continue
        name = path.relative_to(folder)
        with path.open("rb") as file:
            piece = file.read(_PART)
            while True:
                following = file.read(_PART)
                data = base64.b64encode(zlib.compress(piece)).decode()
                yield Part(name.as_posix(), data, last=not following)
                if not following:
                    break
                piece = following
