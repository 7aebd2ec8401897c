"""A page that compares runs: what they reached for which epsilon, rounds and bytes. Runs that differ only in their
seed
are one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from fedsketch.conf.settings import Metric
from fedsketch.server.report import number_format as readable
from fedsketch.server.report import plots
from fedsketch.server.report.compared_metric import judged_by
from fedsketch.server.report.comparison_tables import Cells, results, settings
from fedsketch.server.report.groups import Group, grouped
from fedsketch.server.report.number_format import in_order
from fedsketch.server.report.page import figure, write_page
from fedsketch.server.report.plots import Axis, Level, Line
from fedsketch.server.report.run_record import Run, number, read_run

Costs = Callable[[Run], Sequence[float | None]]


class _Look(NamedTuple):
    """Colour and line style of a group."""

    color: str
    dashes: str


class _View(NamedTuple):
    """One chart: what the metric is plotted against."""

    title: str
    note: str
    axis: Axis
    costs: Costs


def compare(folders: list[Path], out: Path, metric: str | None = None) -> Path:
    """Write one page that compares runs by a metric: the given one, or that of their task."""
    runs = [read_run(folder) for folder in folders]
    return write_comparison(grouped(runs), judged_by(runs, metric), out)


def write_comparison(groups: Sequence[Group], metric: Metric, out: Path) -> Path:
    looks = [
        _Look(
            color,
            plots.DASHES[i % len(plots.DASHES)] if len(groups) > len(plots.COLORS) else "solid",
        )
        for i, color in enumerate(plots.colors(len(groups)))
    ]
    legend = "".join(
        f"<li>{_swatch(look)}{escape(group.label)}</li>"
        for group, look in zip(groups, looks, strict=True)
    )
    charts = "".join(_figures(groups, looks, metric))
    count = sum(len(group.runs) for group in groups)
    title = f"Comparison of {count} runs"
    differ = settings(groups)
    body = f"""<header><h1>{title}</h1></header>
<main><section><h2>{escape(readable.name(metric))}</h2><ul class="legend">{legend}</ul>
<div class="grid">{charts}</div></section>
<section><h2>Runs</h2><div class="card scroll">{_table(results(groups, metric), _RESULTS, looks)}</div></section>
"""
    if differ.rows:
        body += f'<section><h2>Settings</h2><div class="card scroll">{_table(differ, _SETTINGS)}</div></section>\n'
    return write_page(out, title, f"{body}</main>")


_RESULTS = (
    "Runs that differ only in their seed are one line: numbers are means, and the number after ± is the standard "
    "deviation over the runs. Bytes are per client over the whole run."
)
_SETTINGS = (
    "Those in which runs differ, but for the seed. What merely comes with another strategy, data set or model is not "
    "listed."
)


def _figures(groups: Sequence[Group], looks: Sequence[_Look], metric: Metric) -> Iterator[str]:
    """Yield charts of the metric against its costs. A group without that cost (no guarantee, so no epsilon) is a
    horizontal line."""
    path = metric.name.split(".")
    for view in _views(groups):
        lines, levels = [], []
        for group, look in zip(groups, looks, strict=True):
            points = group.curve(view.costs, lambda run: [number(row, *path) for row in run.rows])
            final = group.spread(lambda run: run.last(*path))
            if points:
                x, spreads = zip(*points, strict=True)
                band = (
                    [spread.deviation or 0.0 for spread in spreads] if len(group.runs) > 1 else None
                )
                lines.append(Line(group.label, x, [spread.mean for spread in spreads], *look, band))
            elif final is not None:
                levels.append(Level(group.label, final.mean, look.color))
        if not lines:
            continue
        log = view.axis is not plots.ROUND and plots.spread([line.x[-1] for line in lines], 5)
        ends = (
            f"{line.label}: {readable.metric(metric, line.y[-1])} at {view.axis.text(line.x[-1])}"
            for line in lines
        )
        title = f"{readable.name(metric)} against {view.title}"
        chart = plots.line_chart(
            f"plot-{view.title.encode().hex()}",
            f"{title}. {'; '.join(ends)}.",
            lines,
            plots.axis_of(metric),
            replace(view.axis, log=log),
            levels=levels,
            endpoints=True,
            legend=False,
        )
        yield figure(title, view.note, chart)


def _views(groups: Sequence[Group]) -> Iterator[_View]:
    """Yield the charts. Epsilons against different adversaries cannot be compared, so each adversary of a budget has
    its own chart."""
    for name in in_order(run.bound() for group in groups for run in group.runs):
        axis = Axis(f"epsilon against {name}", readable.plain)
        title = f"epsilon (adversary: {name})"
        yield _View(title, "dashed: no guarantee", axis, _spent(name))
    yield _View("round", "", plots.ROUND, lambda run: [row["round"] for row in run.rows])
    summed = "per client, summed over rounds"
    up, both = ("uplink_bytes",), ("uplink_bytes", "downlink_bytes")
    for label, keys in (("bytes up", up), ("bytes up and down", both)):
        yield _View(label, summed, Axis(label, readable.size), _sent(*keys))


def _spent(adversary: str) -> Costs:
    return lambda run: [number(row, "epsilon", adversary) for row in run.rows]


def _sent(*keys: str) -> Costs:
    def total(run: Run) -> list[float | None]:
        return list(accumulate(sum(number(row, key) or 0.0 for key in keys) for row in run.rows))

    return total


def _table(cells: Cells, caption: str, looks: Sequence[_Look] = ()) -> str:
    """Return a table as HTML, with colour and line style of each row if given."""
    kinds = [' class="number"' if cells.numeric(i) else "" for i in range(len(cells.headers))]
    head = "".join(
        f'<th scope="col"{kind}>{escape(text)}</th>'
        for kind, text in zip(kinds, cells.headers, strict=True)
    )
    rows = ""
    for i, row in enumerate(cells.rows):
        swatch = _swatch(looks[i]) if looks else ""
        rest = "".join(f"<td{kinds[j]}>{escape(text)}</td>" for j, text in enumerate(row) if j > 0)
        rows += f'<tr><th scope="row">{swatch}{escape(row[0])}</th>{rest}</tr>'
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _swatch(look: _Look) -> str:
    pattern = {"solid": "none", "dashed": "7 4", "dashdot": "8 3 2 3", "dotted": "2 3"}[look.dashes]
    line = (
        f'<path d="M0 5h30" stroke="{look.color}" stroke-width="3" stroke-dasharray="{pattern}"/>'
    )
    return f'<svg class="swatch" viewBox="0 0 30 10" aria-hidden="true">{line}</svg>'
