"""A page and a table that compare runs: accuracy against epsilon, rounds and bytes."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsketch.server.leaves import leaves
from fedsketch.server.report import plots, readable
from fedsketch.server.report.page import figure, text_of, write_page
from fedsketch.server.report.plots import Axis, Level, Line
from fedsketch.server.report.readable import in_order
from fedsketch.server.report.run_record import Run, number, read_run

_NUMERIC = ("Accuracy", "Rounds", "Up", "Down", "Time")
_MANY = 8  # more colours are hard to tell apart
_WIDTH_OF_FILES = 180  # columns of a table that goes to a file or a pipe


def compare(folders: list[Path], out: Path) -> Path:
    """Write one page that compares runs: accuracy against epsilon, rounds and bytes, and a table."""
    return write_comparison([read_run(folder) for folder in folders], out)


def write_comparison(runs: Sequence[Run], out: Path) -> Path:
    labels = _labels(runs)
    looks = {
        label: (plots.COLORS[i % _MANY], plots.DASHES[i // _MANY % len(plots.DASHES)])
        for i, label in enumerate(dict.fromkeys(labels))
    }
    legend = "".join(f"<li>{_swatch(*look)}{escape(label)}</li>" for label, look in looks.items())
    charts = "".join(_comparison_figures(runs, labels, looks))
    headers, cells = _table(runs)
    kinds = [' class="number"' if _numeric(header) else "" for header in headers]
    head = "".join(
        f'<th scope="col"{kinds[i]}>{escape(text)}</th>' for i, text in enumerate(headers)
    )
    rows = ""
    for row, label in zip(cells, labels, strict=True):
        rest = "".join(f"<td{kinds[i]}>{escape(text)}</td>" for i, text in enumerate(row) if i > 0)
        rows += f'<tr><th scope="row">{_swatch(*looks[label])}{escape(row[0])}</th>{rest}</tr>'
    title = f"Comparison of {len(runs)} runs"
    body = f"""<header><h1>{title}</h1></header>
<main><section><h2>Accuracy</h2><ul class="legend">{legend}</ul><div class="grid">{charts}</div></section>
<section><h2>Runs</h2><div class="card scroll"><table>
<caption>Bytes are per client over the whole run. A setting that merely comes with another strategy, data set or model
is not listed as a difference.</caption>
<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section></main>"""
    return write_page(out, title, body)


def _comparison_figures(
    runs: Sequence[Run], labels: Sequence[str], looks: Mapping[str, tuple[str, str]]
) -> Iterator[str]:
    """Accuracy against what it costs. A run without that cost (no guarantee, so no epsilon) is a level line."""
    who, summed = "of whom the budget binds; dashed: no guarantee", "per client, summed over rounds"
    views: tuple[tuple[Axis, str, Callable[[Run], list[float | None]]], ...] = (
        (Axis("epsilon", readable.plain), who, _spent),
        (plots.ROUND, "", lambda run: [row["round"] for row in run.rows]),
        (Axis("bytes up", readable.size), summed, _sent("uplink_bytes")),
        (Axis("bytes up and down", readable.size), summed, _sent("uplink_bytes", "downlink_bytes")),
    )
    for axis, note, costs in views:
        lines, levels = [], []
        for run, label in zip(runs, labels, strict=True):
            pairs = zip(costs(run), (number(row, "accuracy") for row in run.rows), strict=True)
            points = [(x, y) for x, y in pairs if x is not None and y is not None]
            final = run.last("accuracy")
            if points:
                x, y = zip(*points, strict=True)
                lines.append(Line(label, x, y, *looks[label]))
            elif final is not None:
                levels.append(Level(label, final, looks[label][0]))
        if not lines:
            continue
        log = axis is not plots.ROUND and plots.spread([line.x[-1] for line in lines], 5)
        ends = (
            f"{line.label}: {readable.percent(line.y[-1])} at {axis.text(line.x[-1])}"
            for line in lines
        )
        title = f"Accuracy against {axis.label}"
        chart = plots.line_chart(
            f"plot-{axis.label.replace(' ', '-')}",
            f"{title}. {'; '.join(ends)}.",
            lines,
            plots.ACCURACY,
            replace(axis, log=log),
            levels=levels,
            endpoints=True,
            legend=False,
        )
        yield figure(title, note, chart)


def _spent(run: Run) -> list[float | None]:
    adversary = run.bound()
    return [number(row, "epsilon", adversary) for row in run.rows]


def _sent(*keys: str) -> Callable[[Run], list[float | None]]:
    def total(run: Run) -> list[float | None]:
        return list(accumulate(sum(number(row, key) or 0.0 for key in keys) for row in run.rows))

    return total


def _swatch(color: str, dashes: str) -> str:
    pattern = {"solid": "none", "dashed": "7 4", "dashdot": "8 3 2 3", "dotted": "2 3"}[dashes]
    line = f'<path d="M0 5h30" stroke="{color}" stroke-width="3" stroke-dasharray="{pattern}"/>'
    return f'<svg class="swatch" viewBox="0 0 30 10" aria-hidden="true">{line}</svg>'


def _differences(runs: Sequence[Run]) -> list[dict[str, str]]:
    """The settings in which the runs differ. Those below a group are compared among runs that chose the same file of it."""
    flat = [
        {key: "null" if value is None else str(value) for key, value in leaves(run.config, ".")}
        for run in runs
    ]
    differ = []
    for key in dict.fromkeys(key for settings in flat for key in settings):
        choice = f"{key.split('.')[0]}.name"
        seen: dict[str | None, set[str | None]] = {}
        for settings in flat:
            same = None if key == choice else settings.get(choice)
            seen.setdefault(same, set()).add(settings.get(key))
        if any(len(values) > 1 for values in seen.values()):
            differ.append(key)
    shown = [key for key in differ if key not in ("strategy.name", "data.name")]  # have columns
    return [{key: settings[key] for key in shown if key in settings} for settings in flat]


def _labels(runs: Sequence[Run]) -> list[str]:
    """What the legend calls each run: seeds share a label, and so do the runs of a strategy when there are many."""
    strategies, data = (
        [run.setting(f"{key}.name") for run in runs] for key in ("strategy", "data")
    )
    short = strategies
    if len(set(data)) > 1:
        short = [f"{name} on {what}" for name, what in zip(strategies, data, strict=True)]
    full = [
        ", ".join([name, *(f"{key}={value}" for key, value in settings.items() if key != "seed")])
        for name, settings in zip(short, _differences(runs), strict=True)
    ]
    enough = len(set(short)) == len(set(full)) or (len(set(short)) > 1 and len(set(full)) > _MANY)
    labels = short if enough else full
    labels = labels if len(set(labels)) > 1 else _names(runs)
    return [_marked(label, run) for label, run in zip(labels, runs, strict=True)]


def _marked(name: str, run: Run) -> str:
    """The name of a run, with a mark where none of its epsilons holds: its accuracy cost nothing that the others paid for."""
    return name if run.not_private() is None else f"{name} (NOT PRIVATE)"


def _names(runs: Sequence[Run]) -> list[str]:
    """Folders, without what they have in common."""
    paths = [run.folder.resolve() for run in runs]
    common = os.path.commonpath([path.parent for path in paths])
    return [str(path.relative_to(common)) for path in paths]


def _table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    adversaries = in_order(name for run in runs for name in run.adversaries())
    spent = [f"Epsilon, {name}" for name in adversaries]
    headers = ["Run", "Strategy", "Data", *spent, *_NUMERIC, "Differs in"]
    rows = []
    for run, name, settings in zip(runs, _names(runs), _differences(runs), strict=True):
        planned = number(run.config, "rounds") or 0
        missing = f" of {planned}" if planned > len(run.rows) else ""
        row = [_marked(name, run), run.setting("strategy.name"), run.setting("data.name")]
        row += [
            text_of(run.last("epsilon", adversary), readable.plain) for adversary in adversaries
        ]
        row += [text_of(run.last("accuracy"), readable.percent), f"{len(run.rows)}{missing}"]
        row += [
            readable.size(sum(run.series(key)[1])) for key in ("uplink_bytes", "downlink_bytes")
        ]
        row += [readable.duration(run.seconds())]
        row += [" ".join(f"{key}={value}" for key, value in settings.items())]
        rows.append(row)
    return headers, rows


def _numeric(header: str) -> bool:
    return header in _NUMERIC or header.startswith("Epsilon")


def print_table(runs: Sequence[Run]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    headers, rows = _table(runs)
    table = Table()
    for header in headers:
        justify: Literal["left", "right"] = "right" if _numeric(header) else "left"
        table.add_column(Text(header), overflow="fold", justify=justify)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
