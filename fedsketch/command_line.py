"""What all commands have in common: arguments that are wrong, and errors that a user can correct, end in one sentence
on stderr and an exit code other than 0. Every other error keeps its traceback."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from fedsketch.errors import FedsketchError, UsageError


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[0].upper()}{message[1:]}: see {self.prog} --help.")


def run_command(
    parser: Parser, arguments: Sequence[str] | None, work: Callable[[argparse.Namespace], None]
) -> int:
    """Do what the arguments ask for, and return the exit code: 0, or 1 after one sentence."""
    try:
        work(parser.parse_args(arguments))
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        print(f"{parser.prog}: {sentence}", file=sys.stderr)
        return 1
    return 0


def sentence_of(error: Exception) -> str | None:
    """Return the sentence about an error that a user can correct; None for a bug."""
    if isinstance(error, FedsketchError) or _is_of_secagg(error):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    return None


def _is_of_secagg(error: Exception) -> bool:
    # Looked up, because importing secagg takes a second. It is there if it has raised anything.
    secagg = sys.modules.get("fedsketch.secagg")
    return isinstance(error, getattr(secagg, "SecAggError", ()))
