"""Reads tables from files, with every cell as text: a CSV file with a header, or a folder of .txt files by class.

Error messages name the file, the line and the column. They are written to the node's log, so they never repeat a cell.
Where a device reads its own table (`bad`), a record that cannot be read becomes a row of empty cells, and is noted as
one whose place stays blank.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedsketch.conf.targets import Targets
from fedsketch.errors import DataError
from fedsketch.tasks.data.bad_records import BadRecords, one_record
from fedsketch.tasks.data.schema import Schema, Text

MISSING = frozenset(("", "na", "nan", "null", "?"))
# Characters. A text may be long, but after a missing quote a cell would contain the rest of the file.
_LONGEST_CELL = 2**24
_MOST_LINES = 10_000  # of one record on a device, so that broken quotes cost little time


@dataclass(frozen=True)
class Table:
    """Cells by column, and the place of each row: the line in which it ends, or its .txt file."""

    path: Path
    columns: dict[str, list[str]]
    places: list[str]

    def __len__(self) -> int:
        return len(self.places)

    def wrong(self, row: int, column: str, what: str) -> DataError:
        """Return the error for one cell."""
        return DataError(f"{self.places[row]}, column {column}: {what}.")

    def number(self, row: int, column: str) -> float:
        """Return the number in a cell, or nan if it is missing."""
        cell = self.columns[column][row].strip()
        if cell.lower() in MISSING:
            return float("nan")
        try:
            return float(cell)
        except ValueError:  # its text has the cell
            raise self.wrong(row, column, "it is not a number") from None

    def holds_numbers(self, column: str) -> bool:
        """Return whether every cell of a column is a number or missing."""
        try:
            for row in range(len(self)):
                self.number(row, column)
        except DataError:
            return False
        return True

    def write(self, path: Path, names: Sequence[str], rows: Sequence[int]) -> None:
        """Write a CSV file of these columns and rows."""
        columns = [self.columns[name] for name in names]
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows([cells[row] for cells in columns] for row in rows)


def read_table(
    path: Path, schema: Schema, *, targets: bool = True, bad: BadRecords | None = None
) -> Table:
    """Read the table at a path. It must have the columns of the schema and no others. Without `targets`, the target
    columns may be missing, and other columns are allowed."""
    if path.is_dir():
        with _readable(path):
            return _texts(path, schema, bad)
    if bad is None:
        table = read_cells(path, schema.delimiter)
    else:
        with _readable(path):
            table = _record_by_record(path, schema.delimiter, bad)
    for name in schema.needed if targets else schema.inputs:
        if name not in table.columns:
            raise DataError(
                f"{path} has no column {name}, which its schema names: add it, or correct the schema."
            )
    for name in table.columns if targets else ():
        if name not in (*schema.needed, *schema.ignored, schema.client, schema.test):
            raise DataError(
                f"{path} has a column {name}, which its schema does not name: describe it there, or write `{name}: "
                "ignore`."
            )
    if not len(table) and bad is None:
        raise DataError(f"{path} has no rows: add some.")
    return table


def read_cells(path: Path, delimiter: str) -> Table:
    """Read a CSV file without a schema."""
    with _readable(path):
        return _csv(path, delimiter)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise DataError(f"{error.filename} may not be read: allow it.") from error
    except UnicodeDecodeError:
        raise DataError(f"{path} holds bytes that are not UTF-8: save it as UTF-8.") from None


def _csv(path: Path, delimiter: str) -> Table:
    if not path.is_file():
        raise DataError(f"There is no table {path}: name a .csv file that exists.")
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _check_header(path, header)
            rows, places = [], []
            for row in reader:
                if not row:
                    continue  # an empty line
                if len(row) != len(header):
                    raise DataError(
                        f"{path}, line {reader.line_num}: {len(row)} cells, and the header has {len(header)}."
                    )
                rows.append(row)
                places.append(f"{path}, line {reader.line_num}")
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}.") from error
    finally:
        csv.field_size_limit(before)
    cells = map(list, zip(*rows, strict=True)) if rows else ([] for _ in header)
    return Table(path, dict(zip(header, cells, strict=True)), places)


def _record_by_record(path: Path, delimiter: str, bad: BadRecords) -> Table:
    """Read a CSV file of which any record may be broken. Only the header can be an error.

    A record may have several lines, if a quote says so. If it cannot be read, its first line alone is taken for the
    broken record, and reading continues with the next line: a quote that is never closed takes no other record along.
    """
    if not path.is_file():
        raise DataError(f"There is no table {path}: name a .csv file that exists.")
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        with path.open("rb") as file:
            lines = file.read().removeprefix(codecs.BOM_UTF8).splitlines(keepends=True)
        header, at = _record(lines, 0, delimiter)
        if header is None:
            raise DataError(
                f"{path} has no header that can be read: its first line names the columns."
            )
        header = [name.strip() for name in header]
        _check_header(path, header)
        rows: list[list[str]] = []
        places = []
        while at < len(lines):
            if not lines[at].strip(b"\r\n"):
                at += 1  # an empty line
                continue
            if len(rows) == bad.most:
                bad.surplus = True
                break
            row, after = _record(lines, at, delimiter, len(header))
            if row is None:
                bad.add(len(rows), "that is not a row of the table")
                row = [""] * len(header)
            rows.append(row)
            places.append(f"{path}, line {after}")
            at = after
    finally:
        csv.field_size_limit(before)
    cells = map(list, zip(*rows, strict=True)) if rows else ([] for _ in header)
    return Table(path, dict(zip(header, cells, strict=True)), places)


def _record(
    lines: Sequence[bytes], at: int, delimiter: str, cells: int | None = None
) -> tuple[list[str] | None, int]:
    """Return the record that begins in a line, and the number of the line after it. None if it cannot be read, or has
    another number of cells."""
    end = at

    def decoded() -> Iterator[str]:
        nonlocal end
        while end < min(len(lines), at + _MOST_LINES):
            end += 1
            yield lines[end - 1].decode("utf-8")

    try:
        row = next(csv.reader(decoded(), delimiter=delimiter, strict=True), None)
    except (csv.Error, UnicodeDecodeError):
        return None, at + 1
    if row is None or (cells is not None and len(row) != cells):
        return None, at + 1
    return row, end


def _check_header(path: Path, header: list[str]) -> None:
    if not header:
        raise DataError(f"{path} is empty: its first line names the columns.")
    for name in header:
        if header.count(name) > 1:
            places = [place for place, other in enumerate(header, 1) if other == name]
            raise DataError(
                f"In the header of {path}, columns {places[0]} and {places[1]} have the same name: rename one of them."
            )


def _texts(root: Path, schema: Schema, bad: BadRecords | None) -> Table:
    """Read a folder of texts, one row per file. The names of existing folders are looked up among the classes of the
    schema, never the other way round."""
    text, *more = schema.inputs
    target = schema.target
    if more or not isinstance(schema.inputs[text], Text) or target.kind is not Targets.CLASSES:
        raise DataError(
            f"{root} is a folder, so its schema must have one text column and a class as target: name a .csv file, or "
            "change the schema."
        )
    files = []
    for folder in sorted(root.iterdir()):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        if folder.name not in target.values and bad is None:
            raise DataError(
                f"{folder} is not a class of the schema: rename it to one of {', '.join(target.values)}, or move it "
                "away."
            )
        files += sorted(folder.glob("*.txt"))
    if not files and bad is None:
        raise DataError(f"{root} holds no example: put .txt files into {root}/<class>.")
    if bad is not None:
        files = files[: bad.room(len(files))]
    texts = [""] * len(files)
    for place, file in enumerate(files):
        with one_record(bad, place, "whose file is not a text in UTF-8"):
            texts[place] = file.read_text(encoding="utf-8")
    labels = [file.parent.name for file in files]
    return Table(root, {text: texts, target.columns[0]: labels}, list(map(str, files)))
