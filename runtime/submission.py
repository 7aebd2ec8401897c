"""A run on a server elsewhere: submitted to a SuperLink, followed through its log, and downloaded at its end.

The submitter's folder remembers the run in `submitted.json`, so that an interrupted submitter finds it again. A run
that is still going is followed; one that failed is resumed from its last checkpoint on the server, under a new id.
"""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsketch.conf import Config
from fedsketch.errors import ConfigError, FlowerError, RunFailed
from fedsketch.runtime.flower import Connection
from fedsketch.secagg import clean_text
from fedsketch.server.flower_keys import KEYS
from fedsketch.server.observers.events import LARGEST_FILE, EventReader, FilePart
from fedsketch.server.report.number_format import size
from fedsketch.server.run_folder import RunFolder, create

if TYPE_CHECKING:
    from fedsketch.server.observers.observer import Display

# The project's folder, from which Flower packs the app.
APP = Path(__file__).resolve().parent.parent
_ARRIVING = ".arriving"
_COMPLETED = "finished:completed"
_LOOK_AGAIN = 1.0
_PATIENCE = 60.0  # seconds that a SuperLink may take to restart before we give up


@dataclass(frozen=True)
class Submission:
    """A run at a SuperLink: its id, and the name of its folder on the server."""

    run: int
    folder: str

    @classmethod
    def of(cls, folder: Path) -> Submission | None:
        """Return the run that a submitter's folder remembers, if any."""
        files = RunFolder(folder)
        try:
            note = files.read_submission()
            return None if note is None else cls(**note)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{files.submission} is damaged: start a new run.") from error

    def keep(self, folder: Path) -> None:
        RunFolder(folder).write_submission(asdict(self))


def submit(
    connection: Connection, overrides: Sequence[str], name: str | None, *, send: bool
) -> Submission:
    """Start a run with these overrides. `name` is that of a folder on the server in which a run is resumed, if there is
    one."""
    if not (APP / "pyproject.toml").exists():
        raise ConfigError(
            "The app bundle is made from the project's checkout: install fedsketch with `pip install -e .` from "
            "there, and submit again."
        )
    name = name or f"run-{secrets.token_hex(8)}"
    # Clears the keys in pyproject.toml: the overrides are the whole configuration.
    unset = dict.fromkeys(KEYS, "")
    run = connection.submit(
        APP, overrides=shlex.join(overrides), folder=name, send=send, events=True, **unset
    )
    return Submission(run, name)


def follow(
    connection: Connection, run: int, config: Config, folder: Path, observer: Display
) -> None:
    """Pass on to the observer what the run reports, until it ends; raises `RunFailed` unless it completed."""
    for draft in folder.rglob(f"*{_ARRIVING}"):
        draft.unlink()  # left by an interrupted submitter
    shown = 0
    alone_since: float | None = None
    while True:
        with connection.log(run) as lines:
            events, seen = EventReader(), 0
            for line in lines:
                event = events.read(line)
                if event is None:
                    continue
                seen += 1
                # After a broken connection, the log is read from its beginning again.
                if seen > shown:
                    shown = seen
                    _tell(*event, config, folder, observer)
        try:
            status, details = connection.status(run)
        except FlowerError:
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since > _PATIENCE:
                raise
            time.sleep(_LOOK_AGAIN)
            continue
        alone_since = None
        if status == _COMPLETED:
            return
        if status.startswith("finished"):
            reason = details.removeprefix("ServerApp failed with exception: ") or status
            raise RunFailed(f"Run {run} did not complete: {clean_text(reason, longest=3000)}")
        time.sleep(_LOOK_AGAIN)


def _tell(
    kind: str, facts: dict[str, object], config: Config, folder: Path, observer: Display
) -> None:
    if kind == "began":
        observer.began(config, int(str(facts["done"])), str(facts["guarantee"]))
    elif kind == "note":
        observer.notes(clean_text(facts["told"], longest=3000))
    elif kind == "played":
        observer.round_done(facts["row"])  # type: ignore[arg-type]
    elif kind == "file":
        _receive(facts, config, folder)
    elif kind == "ended":
        observer.ended(facts["summary"], RunFolder(folder).report)  # type: ignore[arg-type]


def _receive(facts: dict[str, object], config: Config, folder: Path) -> None:
    """Write a part of a result into the run's folder, and nothing else: the log comes from the server, which is not
    trusted."""
    try:
        part = FilePart(**facts)  # type: ignore[arg-type]
        content = part.content()
        known = RunFolder(folder).is_result(part.name)
    except (ValueError, TypeError) as error:
        raise ConfigError("The server sent a part of a file that cannot be read.") from error
    if not known:
        raise ConfigError(
            f"The server sent a file with the name '{clean_text(part.name)}', which no result of a run has."
        )
    target = folder / part.name
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(target.name + _ARRIVING)
    create(draft, RunFolder(folder).mode_of(part.name, config))
    with draft.open("ab") as file:
        file.write(content)
        if file.tell() > LARGEST_FILE:
            raise ConfigError(f"The server sent more of {part.name} than {size(LARGEST_FILE)}.")
    if part.last:
        draft.replace(target)
