"""`fedsketch-schema FILE.csv`: writes a first schema of a table, to be completed by hand.

It lists the columns, and says which of them hold numbers. Bounds, categories and names of classes are left open,
because they must be public knowledge, and must not be taken from the data. A schema with open places is refused
wherever it is used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsketch.command_line import Parser, run_command
from fedsketch.errors import UsageError
from fedsketch.tasks.data.schema import beside
from fedsketch.tasks.data.tables import Table, read_cells

_HEAD = """\
# Fill in what is null or empty, from public knowledge and not from the data: least and most of a number, the values of
# a category or of a class. Instead of a category a column can be {text: 1024}, or ignore: docs/how-to/own_tables.md
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script; returns 0, or 1 after one sentence on stderr."""
    parser = Parser(
        prog="fedsketch-schema", description="Begin the schema of a table, to be filled in by hand."
    )
    parser.add_argument("table", type=Path, help="a .csv file")
    parser.add_argument("--target", metavar="COLUMN", required=True, help="what is to be learned")
    parser.add_argument("--client", metavar="COLUMN", help="whose row it is, such as hospital")
    parser.add_argument("--delimiter", default=",", help="what separates cells")
    return run_command(parser, arguments, _run)


def _run(asked: argparse.Namespace) -> None:
    file = beside(asked.table)
    if file.exists():
        raise UsageError(f"{file} exists: edit it, it is not replaced.")
    text = draft(
        read_cells(asked.table, asked.delimiter), asked.target, asked.client, asked.delimiter
    )
    file.write_text(text, encoding="utf-8")
    print(f"Wrote {file}: fill in bounds, categories and classes, from public knowledge.")


def draft(table: Table, target: str, client: str | None, delimiter: str = ",") -> str:
    """Return the text of a first schema for this table."""
    import yaml

    for name in (target, client):
        if name is not None and name not in table.columns:
            raise UsageError(f"{table.path} has no column {name}.")
    columns: dict[str, Any] = {
        name: {"number": [None, None]} if table.holds_numbers(name) else {"category": []}
        for name in table.columns
        if name not in (target, client)
    }
    learned = {"number": [None, None]} if table.holds_numbers(target) else {"class": []}
    content: dict[str, Any] = {"columns": columns, "target": {"column": target, **learned}}
    content |= {} if client is None else {"client": client}
    content |= {} if delimiter == "," else {"delimiter": delimiter}
    lines = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None)
    return _HEAD + lines


if __name__ == "__main__":
    sys.exit(main())
