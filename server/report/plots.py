"""The charts of a report, as SVG text inside of an HTML page.

Lines and text have the colour `currentColor`, so that a chart is legible on any background, and text stays text. The
same numbers give the same bytes: no date, no random ids. Only matplotlib's object interface is used, without the global
state of pyplot. The remaining global state (rcParams) is protected by a lock, because a run may write reports in any
thread.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from html import escape
from threading import Lock
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fedsketch.conf.settings import Metric
from fedsketch.server.report.number_format import plain

# Middle tones, with a contrast of at least 3 to 1 on white and on almost black.
COLORS = (
    "#3583d6",
    "#d9691e",
    "#279a63",
    "#c0549c",
    "#8a70dd",
    "#a98600",
    "#dd4f4a",
    "#2596a5",
    "#8c7b6b",
    "#7a8699",
)
DASHES = ("solid", "dashed", "dashdot", "dotted")

INK = "#010203"  # becomes currentColor: the text colour of the page
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9.5,
    "grid.alpha": 0.14,
    "grid.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedsketch",
    "text.color": INK,
    "text.parse_math": False,  # names of runs and metrics are not formulas
    "xtick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.color": INK,
    "ytick.major.width": 0.6,
}
_LOCK = Lock()
_SIZE = (5.4, 3.1)
_MAX_BARS = 50


@dataclass(frozen=True)
class Axis:
    """What an axis measures, and how its numbers are written. Without `ticks` they are chosen from the data."""

    label: str
    text: Callable[[float], str]
    log: bool = False
    integer: bool = False
    from_zero: bool = False
    ticks: Sequence[float] = ()


@dataclass(frozen=True)
class Line:
    """One curve. A band around it, this far above and below, shows a deviation."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    dashes: str = "solid"
    band: Sequence[float] | None = None


@dataclass(frozen=True)
class Level:
    """One horizontal line."""

    label: str
    y: float
    color: str = INK


ROUND = Axis("round", plain, integer=True)


def axis_of(metric: Metric) -> Axis:
    """Return the axis for the values of a metric."""
    text = (lambda fraction: f"{100 * fraction:.3g} %") if metric.percent else plain
    return Axis(metric.name, text)


def colors(count: int) -> list[str]:
    """Return this many different colours: those above, and then equally spaced hues in a middle tone."""
    if count <= len(COLORS):
        return list(COLORS[:count])
    tones = (0.42, 0.52)  # neighbours differ in lightness too
    made = (hls_to_rgb(i / count, tones[i % 2], 0.6) for i in range(count))
    return [to_hex(rgb) for rgb in made]


def spread(values: Sequence[float], factor: float) -> bool:
    """Return whether positive values are so far apart that only a logarithmic axis shows them all."""
    return bool(values) and min(values) > 0 and max(values) > factor * min(values)


def line_chart(
    name: str,
    alt: str,
    lines: Sequence[Line],
    y: Axis,
    x: Axis = ROUND,
    *,
    levels: Sequence[Level] = (),
    endpoints: bool = False,
    legend: bool = True,
) -> str:
    """Return a chart with curves, and horizontal lines at `levels`; `endpoints` marks the end of each curve."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for line in lines:
            (curve,) = axes.plot(line.x, line.y, color=line.color, linewidth=1.7, label=line.label)
            curve.set(linestyle=line.dashes, alpha=0.6 if endpoints else 1)
            if line.band is not None:
                low, high = (np.add(line.y, np.multiply(sign, line.band)) for sign in (-1, 1))
                axes.fill_between(line.x, low, high, color=line.color, alpha=0.15, linewidth=0)
            if endpoints or len(line.x) == 1:
                axes.plot(line.x[-1], line.y[-1], color=line.color, marker="o", markersize=5.5)
        for level in levels:
            dashes = (0, (4, 3))
            axes.axhline(
                level.y, color=level.color, linewidth=1, linestyle=dashes, label=level.label
            )
        if y.from_zero:
            axes.set_ylim(0, 1.05 * max(max(line.y) for line in lines))
        _scales(axes, x, y)
        if legend and (len(lines) > 1 or levels):
            figure.legend(loc="outside upper left", ncols=4, handlelength=1.6, columnspacing=1.4)

    return _svg(name, alt, draw)


def stacked_chart(
    name: str, alt: str, rounds: Sequence[float], parts: Mapping[str, np.ndarray], y: Axis
) -> str:
    """Return a chart with the parts of a whole for every round, stacked."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        edges = np.append(np.asarray(rounds) - 0.5, rounds[-1] + 0.5)
        base = np.zeros(len(rounds))
        for color, (label, values) in zip(COLORS, parts.items(), strict=False):
            top = base + values
            axes.stairs(top, edges, baseline=base, fill=True, color=color, label=label)
            base = top
        _scales(axes, ROUND, y)
        figure.legend(loc="outside upper left", ncols=4, handlelength=1.2, columnspacing=1.4)

    return _svg(name, alt, draw)


def histogram_chart(name: str, alt: str, counts: Sequence[Sequence[float]]) -> str:
    """Return a chart of the examples per client and class: bars for few clients, a heat map for many."""
    table = np.asarray(counts, dtype=float)
    bars = table.shape[0] <= _MAX_BARS and table.shape[1] <= len(COLORS)

    def draw_bars(figure: Figure) -> None:
        axes = figure.subplots()
        base = np.zeros(len(table))
        for label, column in enumerate(table.T):
            clients = np.arange(len(table))
            axes.bar(clients, column, bottom=base, width=0.85, color=COLORS[label], label=label)
            base += column
        axes.margins(x=0.01)
        _scales(axes, Axis("client", plain, integer=True), Axis("examples", plain))
        axes.grid(visible=False, axis="x")
        if table.shape[1] > 1:
            figure.legend(loc="outside right center", title="class", handlelength=1, reverse=True)

    def draw_map(figure: Figure) -> None:
        axes = figure.subplots()
        # From transparent to blue, so that zero is the page's own background.
        shades = LinearSegmentedColormap.from_list("examples", [f"{COLORS[0]}00", COLORS[0]])
        image = axes.imshow(table.T, aspect="auto", origin="lower", cmap=shades, vmin=0)
        bar = figure.colorbar(image, label="examples", pad=0.02)
        bar.outline.set_visible(False)
        axes.grid(visible=False)
        _scales(axes, Axis("client", plain, integer=True), Axis("class", plain, integer=True))

    return _svg(name, alt, draw_bars if bars else draw_map, (2 * _SIZE[0] + 0.5, _SIZE[1]))


def _scales(axes: Axes, x: Axis, y: Axis) -> None:
    """Set ticks and labels, after the data are drawn."""
    for side, scale, axis in ((axes.xaxis, axes.set_xscale, x), (axes.yaxis, axes.set_yscale, y)):
        if axis.log:
            scale("log")
            low, high = side.get_view_interval()
            side.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
            side.set_minor_locator(NullLocator())
        else:
            side.set_major_locator(MaxNLocator(6, integer=axis.integer, steps=[1, 2, 5, 10]))
        if axis.ticks:
            side.set_major_locator(FixedLocator(axis.ticks))
        side.set_major_formatter(FuncFormatter(lambda value, _, text=axis.text: text(value)))
        side.set_label_text(axis.label)


def _svg(
    name: str, alt: str, draw: Callable[[Figure], None], inches: tuple[float, float] = _SIZE
) -> str:
    """Draw a chart and make it fit into a page with others: all its ids begin with `name`."""
    file = io.StringIO()
    with _LOCK, matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=inches, dpi=144, layout="constrained")
        draw(figure)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # matplotlib's names of groups, which are not used
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)  # the page sets the size
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)
