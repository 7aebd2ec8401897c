"""Charts of FedCEO's smoothing: the singular values of a stack's slices before and after, and what was subtracted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedsketch.server.report import number_format as readable
from fedsketch.server.report import plots
from fedsketch.server.report.page import figure
from fedsketch.server.report.plots import Axis, Level, Line
from fedsketch.server.report.run_record import Run

KEY = "smoothing"  # in a round's metrics: for each tensor, the threshold and the singular values of every slice
_MOST_ROUNDS = 6
_RANK = Axis("rank", readable.plain, integer=True)


def figures(run: Run) -> Iterator[str]:
    """Yield one chart per tensor, for a few of the smoothing rounds from the first to the last."""
    smoothed = [row for row in run.rows if row.get(KEY)]
    steps = max(1, min(_MOST_ROUNDS, len(smoothed)) - 1)
    chosen = sorted({round(i * (len(smoothed) - 1) / steps) for i in range(steps + 1)})
    for index in chosen if smoothed else ():
        row = smoothed[index]
        for tensor, values in row[KEY].items():
            yield _picture(row["round"], tensor, values["threshold"], values["spectrum"])


def _picture(server_round: int, tensor: str, threshold: float, spectrum: Any) -> str:
    ranks = list(range(1, len(spectrum[0]) + 1))
    lines = []
    for frequency, values in enumerate(spectrum):
        color = plots.COLORS[frequency % len(plots.COLORS)]
        after = [max(value - threshold, 0.0) for value in values]
        lines.append(Line(f"slice {frequency}", ranks, values, color))
        lines.append(Line(f"{frequency} after", ranks, after, color, "dotted"))
    left = sum(value > threshold for values in spectrum for value in values)
    count = sum(len(values) for values in spectrum)
    alt = (
        f"Singular values of {tensor} in round {server_round}: {left} of {count} lie above the threshold "
        f"{threshold:.3g}."
    )
    name = f"smoothing-{server_round}-{tensor.encode().hex()}"
    axis = Axis("singular value", readable.plain, from_zero=True)
    levels = [Level("threshold", threshold)]
    chart = plots.line_chart(name, alt, lines, axis, _RANK, levels=levels, legend=len(lines) <= 12)
    note = f"round {server_round}: {left} of {count} singular values are left"
    return figure(f"Smoothing of {tensor}", note, chart)
