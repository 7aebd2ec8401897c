"""Starts programs that end when this process ends: normally, by an exception, by Ctrl-C, or by kill -9.

Flower's programs start others, some in sessions of their own, so ending a program means ending all its descendants. If
a program was killed, its children belong to init, and no tree of processes leads to them. So each program gets a random
mark in its environment, which its descendants inherit. Where there is no /proc to read it from, such orphans stay.

If this process is killed, a small watcher process ends them: it waits at a pipe that closes when this process ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

MARK_VARIABLE = "FEDSKETCH_STARTED_AS"
_GRACE = 6.0  # seconds: Flower's programs force their own exit after 5


class Children:
    """Programs by name, each with a log file. All of them end with the `with` block."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._marks: dict[str, str] = {}

    def __enter__(self) -> Children:
        self._watcher = subprocess.Popen(
            [sys.executable, "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(*self._processes)
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()  # after an empty last line: the watcher has nothing to end
        self._watcher.wait()

    def start(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]
    ) -> None:
        mark = secrets.token_hex(16)
        with (self._logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                env={**environment, MARK_VARIABLE: mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._marks[name] = mark
        self._tell_watcher()

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def ended(self, name: str) -> bool:
        return self._processes[name].poll() is not None

    def end_of_log(self, name: str) -> str:
        """Return the last 300 characters of a program's log, in one line."""
        text = (self._logs / f"{name}.log").read_text(errors="replace")
        return " ".join(text.split())[-300:]

    def stop(self, *names: str) -> None:
        """End these programs and all that they started; returns when none of them is left."""
        end_all({self._processes[name].pid: self._marks[name] for name in names})
        for name in names:
            self._processes.pop(name).wait()
            del self._marks[name]
        self._tell_watcher()

    def _tell_watcher(self) -> None:
        assert self._watcher.stdin is not None
        started = (f"{one.pid}:{self._marks[name]}" for name, one in self._processes.items())
        print(*started, file=self._watcher.stdin, flush=True)


def descendants(roots: Iterable[int]) -> set[int]:
    """Return those of these processes that are running, and all their running descendants."""
    parents = _running()
    found = {pid for pid in roots if pid in parents}
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
    return found


def end_all(started: Mapping[int, str]) -> None:
    """End these processes and all their descendants, found as a tree and by their marks. Those that do not end by
    themselves are killed."""
    marks = set(started.values())
    doomed = descendants({*started, *_marked(marks)})
    # A process that was stopped receives the signal only when it continues.
    _signal(doomed, signal.SIGTERM)
    _signal(doomed, signal.SIGCONT)
    deadline = time.monotonic() + _GRACE
    while doomed and time.monotonic() < deadline:
        time.sleep(0.1)
        doomed &= _running().keys()
    _signal(doomed | _marked(marks), signal.SIGKILL)


def _marked(marks: set[str]) -> set[int]:
    """Return the running processes that have one of these marks in their environment."""
    wanted = {f"{MARK_VARIABLE}={mark}".encode() for mark in marks}
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        # Another user's, or one that has just ended.
        with contextlib.suppress(OSError):
            if not wanted.isdisjoint((process / "environ").read_bytes().split(b"\0")):
                found.add(int(process.name))
    return found


def _running() -> dict[int, int]:
    """Return the parent of each running process. Ended processes that nobody has waited for (Z) do not count: in a
    container this may last for ever."""
    table = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split() for line in table.splitlines()]
    return {int(pid): int(parent) for pid, parent, state in rows if not state.startswith("Z")}


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _watch() -> None:
    """Wait until the pipe closes, then end the processes that its last line names."""
    started: dict[int, str] = {}
    for line in sys.stdin:
        pairs = (one.split(":") for one in line.split())
        started = {int(pid): mark for pid, mark in pairs}
    if started:
        end_all(started)


if __name__ == "__main__":
    _watch()
