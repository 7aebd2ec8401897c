"""The command `fedsketch-report DIR...`: writes the report of one run, or a comparison of several."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fedsketch.server.report.compared_metric import judged_by
from fedsketch.server.report.comparison import write_comparison
from fedsketch.server.report.comparison_tables import print_tables
from fedsketch.server.report.groups import grouped
from fedsketch.server.report.page import ReportError
from fedsketch.server.report.run_page import write_report
from fedsketch.server.report.run_record import Run, find_runs, read_run


class _Parser(argparse.ArgumentParser):
    """A parser that raises an error instead of printing its usage."""

    def error(self, message: str) -> NoReturn:
        raise ReportError(f"{message[0].upper()}{message[1:]}: see fedsketch-report --help.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script; returns 0, or 1 after one sentence on stderr."""
    try:
        options = _parser().parse_args(argv)
        found = {path.resolve(): path for folder in options.folders for path in find_runs(folder)}
        folders = list(found.values())
        if len(folders) == 1 and options.output is None:
            print(write_report(folders[0]))
            return 0
        runs, broken = _readable(folders)
        metric, groups = judged_by(runs, options.metric), grouped(runs)
        path = write_comparison(groups, metric, options.output or Path("comparison.html"))
        print_tables(groups, metric)
        print(path)
        for sentence in broken:
            print(f"Left out: {sentence}", file=sys.stderr)
    except (ReportError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if broken else 0


def _readable(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and a sentence about each of the others. Raises an error if no run can be read."""
    runs, broken = [], []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except ReportError as error:
            broken.append(str(error))
            if folder == folders[-1] and not runs:
                raise
    return runs, broken


def _parser() -> _Parser:
    parser = _Parser(
        "fedsketch-report", description="Write the report of a run, or compare several."
    )
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="a run folder, or one with runs below it",
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="file of the comparison (default: comparison.html)"
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="what to compare by, such as f1, loss or validation.accuracy (default: what the runs' task names first)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
