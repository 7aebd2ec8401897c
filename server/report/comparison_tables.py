"""The tables of a comparison: what each group of runs reached and spent, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsketch.conf.settings import Metric
from fedsketch.server.report import number_format as readable
from fedsketch.server.report.groups import Group, folder_names, marked
from fedsketch.server.report.number_format import in_order
from fedsketch.server.report.run_record import Run, number

_WIDTH_OF_FILES = 180  # columns of a table that is written to a file or a pipe
_BESIDE = 12  # groups in one table of settings on a terminal
_WORDS = ("Run", "Folders", "Strategy", "Data", "Setting")


@dataclass(frozen=True)
class Cells:
    """A table as text."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    def numeric(self, column: int) -> bool:
        return self.headers[column] not in _WORDS


def results(groups: Sequence[Group], metric: Metric) -> Cells:
    """Return a table with one row per group."""
    runs = [run for group in groups for run in group.runs]
    columns: dict[str, Callable[[Group], str]] = {
        f"Epsilon, {name}": _mean(_last("epsilon", name), readable.plain)
        for name in in_order(name for run in runs for name in run.adversaries())
    }
    columns[readable.name(metric)] = _spread(_last(*metric.name.split(".")), metric)
    columns["Rounds"] = _rounds
    columns["Up"] = _mean(_total("uplink_bytes"), readable.size)
    columns["Down"] = _mean(_total("downlink_bytes"), readable.size)
    columns["Time"] = _mean(Run.seconds, readable.duration)
    names = folder_names(runs)
    rows = []
    for group in groups:
        chosen = [group.first.setting(f"{key}.name") for key in ("strategy", "data")]
        numbers = [text(group) for text in columns.values()]
        name = marked(str(group.number), group.first)
        rows.append([name, group.folders(names), *chosen, *numbers])
    return Cells([*_WORDS[:4], *columns], rows)


def settings(groups: Sequence[Group]) -> Cells:
    """Return a table with one row for each setting in which the groups differ, and one column per group."""
    keys = dict.fromkeys(key for group in groups for key in group.settings)
    rows = [[key, *(group.settings.get(key, "") for group in groups)] for key in keys]
    return Cells(["Setting", *(str(group.number) for group in groups)], rows)


def print_tables(groups: Sequence[Group], metric: Metric) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    console.print(_rich(results(groups, metric)))
    for start in range(0, len(groups), _BESIDE):
        cells = settings(groups[start : start + _BESIDE])
        if any(any(values) for _, *values in cells.rows):
            console.print(_rich(cells))


def _rich(cells: Cells) -> Table:
    table = Table()
    for column, header in enumerate(cells.headers):
        justify: Literal["left", "right"] = "right" if cells.numeric(column) else "left"
        table.add_column(Text(header), overflow="fold", justify=justify)
    for row in cells.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _last(*path: str) -> Callable[[Run], float | None]:
    return lambda run: run.last(*path)


def _total(key: str) -> Callable[[Run], float | None]:
    return lambda run: sum(run.series(key)[1])


def _mean(
    value: Callable[[Run], float | None], form: Callable[[float], str]
) -> Callable[[Group], str]:
    def text(group: Group) -> str:
        spread = group.spread(value)
        return "none" if spread is None else form(spread.mean)

    return text


def _spread(value: Callable[[Run], float | None], metric: Metric) -> Callable[[Group], str]:
    def text(group: Group) -> str:
        spread = group.spread(value)
        return "none" if spread is None else spread.text(lambda x: readable.metric(metric, x))

    return text


def _rounds(group: Group) -> str:
    """Return how many rounds were finished, and of how many if not all."""
    counts = sorted({len(run.rows) for run in group.runs})
    planned = number(group.first.config, "rounds") or 0
    missing = f" of {planned:g}" if planned > counts[0] else ""
    return f"{counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''}{missing}"
