"""The console scripts. Their modules take a second or more to import, and Ctrl-C ends them in one sentence even during
that time."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 130


def fedsketch() -> int | None:
    return _call("fedsketch.runtime.cli")


def plan() -> int | None:
    return _call("fedsketch.runtime.plan_command")


def report() -> int | None:
    return _call("fedsketch.server.report.command")


def audit() -> int | None:
    return _call("fedsketch.attacks.command")


def _call(module: str) -> int | None:
    """Call the `main` of a module, and return what it returns."""
    before = signal.getsignal(signal.SIGINT)
    # A job in the background ignores Ctrl-C, and shall do so.
    if before is signal.default_int_handler:
        # An exception during an import would print a traceback, or be mistaken for a missing module.
        signal.signal(signal.SIGINT, _leave)
    try:
        main = import_module(module).main
        signal.signal(signal.SIGINT, before)
        return main()
    except KeyboardInterrupt:
        _leave()


def _leave(_signal: int = signal.SIGINT, _frame: FrameType | None = None) -> NoReturn:
    """End the process at once: nothing has begun that would have to be cleaned up."""
    print("fedsketch: interrupted.", file=sys.stderr, flush=True)
    os._exit(_INTERRUPTED)
