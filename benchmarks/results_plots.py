"""The pictures of docs/results.md: SVG files that read on a white page and on a dark one."""

from collections.abc import Callable
from pathlib import Path

from presets import EPSILONS, PANELS, Panel
from results_cells import Cell, Results

from fedsketch.server.report.number_format import plain, size
from fedsketch.server.report.plots import DASHES, Axis, Line, colors, line_chart

MIDDLE = 2.0  # the epsilon of the pictures that show one
ACCURACY = Axis("accuracy", lambda value: f"{value:.3g} %")
EPSILON = Axis("epsilon", plain, log=True, ticks=EPSILONS)

# A picture in <img> has no text colour of its page: it brings its own, and a background.
_STYLE = (
    "<style>svg{color:#24292f;background:#ffffff}"
    "@media (prefers-color-scheme:dark){svg{color:#e6edf3;background:#0d1117}}</style>"
)


def draw(results: Results, folder: Path) -> list[str]:
    """Write all pictures that there are records for; returns their names."""
    made: dict[str, str] = {}
    for data in results.data:
        for panel in PANELS:
            made[f"{panel.name}_{data}"] = _against_epsilon(results, panel, data)
        server = PANELS[0]
        made[f"bytes_{data}"] = _against(
            results, server, data, "bytes", "bytes per client and round", lambda cell: cell.wire
        )
        made[f"time_{data}"] = _against(
            *(results, server, data, "time", "seconds of one core per round"),
            lambda cell: cell.mean("processor_seconds_per_round"),
        )
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {f"results_{name}.svg": picture for name, picture in made.items() if picture}
    for name, picture in drawn.items():
        (folder / name).write_text(standalone(picture))
    return sorted(drawn)


def standalone(picture: str) -> str:
    """Return the picture as a file of its own."""
    head, body = picture.split(">", 1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head} width="720">{_STYLE}{body}'


def _against_epsilon(results: Results, panel: Panel, data: str) -> str:
    lines = []
    for place, preset in enumerate(panel.presets):
        row, color = results.row(data, preset), colors(len(panel.presets))[place]
        if row:
            cells = row.values()
            accuracies = [cell.accuracy for cell in cells]
            band = [cell.deviation for cell in cells]
            # The sixth colour is close to the second on a dark page.
            dashes = DASHES[place // 5]
            lines.append(Line(preset.name, list(row), accuracies, color, dashes, band))
    alt = f"Accuracy against epsilon on {data}: {panel.title}"
    return line_chart(panel.name, alt, lines, ACCURACY, EPSILON) if lines else ""


def _against(
    results: Results, panel: Panel, data: str, name: str, label: str, x: Callable[[Cell], float]
) -> str:
    """Return accuracy at one epsilon against a price: a point for each preset."""
    points = []
    for preset, color in zip(panel.presets, colors(len(panel.presets)), strict=True):
        cell = results.cell(data, preset, MIDDLE)
        if cell is not None:
            points.append(Line(preset.name, [x(cell)], [cell.accuracy], color))
    axis = Axis(label, size if name == "bytes" else plain, log=True)
    alt = f"Accuracy at epsilon {MIDDLE:g} against {label} on {data}: {panel.title}"
    return line_chart(name, alt, points, ACCURACY, axis) if points else ""
