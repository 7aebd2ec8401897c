"""Small commands that return 0, or 1 after one sentence on stderr."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from fedsketch.secagg import SecAggError


class Parser(argparse.ArgumentParser):
    """Raises `ValueError` instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help.")


def run(
    parser: Parser,
    arguments: Sequence[str] | None,
    work: Callable[[argparse.Namespace], None],
    *others: type[Exception],
) -> int:
    """Do what the arguments ask for. `others` are further errors whose message is a sentence for the user."""
    told: tuple[type[Exception], ...] = (SecAggError, ValueError, *others)
    try:
        work(parser.parse_args(arguments))
    except told as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{parser.prog}: {error.filename}: {error.strerror}.", file=sys.stderr)
        return 1
    return 0
