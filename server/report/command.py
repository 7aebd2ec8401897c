"""The command `fedsketch-report DIR...`: writes the report of one run, or a comparison of several."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedsketch.command_line import Parser, run_command
from fedsketch.errors import ReportError
from fedsketch.server.report.compared_metric import judged_by
from fedsketch.server.report.comparison import write_comparison
from fedsketch.server.report.comparison_tables import print_tables
from fedsketch.server.report.groups import grouped
from fedsketch.server.report.run_page import write_report
from fedsketch.server.report.run_record import Run, find_runs, read_run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script; returns 0, or 1 after one sentence on stderr."""
    return run_command(_parser(), arguments, _report)


def _report(asked: argparse.Namespace) -> None:
    found = {path.resolve(): path for folder in asked.folders for path in find_runs(folder)}
    folders = list(found.values())
    if len(folders) == 1 and asked.output is None:
        print(write_report(folders[0]))
        return
    runs, broken = _readable(folders)
    metric, groups = judged_by(runs, asked.metric), grouped(runs)
    path = write_comparison(groups, metric, asked.output or Path("comparison.html"))
    print_tables(groups, metric)
    print(path)
    if broken:
        raise ReportError("\n".join(f"Left out: {sentence}" for sentence in broken))


def _readable(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs that can be read, and a sentence about each of the others. Raises an error if no run can be
    read."""
    runs, broken = [], []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except ReportError as error:
            broken.append(str(error))
            if folder == folders[-1] and not runs:
                raise
    return runs, broken


def _parser() -> Parser:
    parser = Parser(
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
