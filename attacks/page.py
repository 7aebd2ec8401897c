"""The audit as a page: for each adversary the scores with and without the canary, and the trade-off between false
alarms and misses."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from fedsketch.attacks.audit import Finding, Report
from fedsketch.attacks.statistics import claimed_trade_off, trade_off
from fedsketch.server.report.number_format import plain
from fedsketch.server.report.page import figure, text_of, write_page
from fedsketch.server.report.plots import COLORS, Axis, Line, line_chart

COLUMNS = (
    "of",
    "adversary",
    "cohorts",
    "claimed",
    "fit",
    "fit, at least",
    "counted, at least",
    "trials",
)
_BINS = 60
_POINTS = 300
_SHARE = Axis("share of trials", plain, from_zero=True)
_ALARMS = Axis("false alarms", plain)
_MISSES = Axis("misses", plain)


def cells(finding: Finding) -> tuple[str, ...]:
    """Return one row of the table, on the terminal and on the page."""
    return (
        finding.what,
        finding.adversary,
        cohorts(finding),
        text_of(finding.claimed, plain),
        plain(finding.fitted),
        plain(finding.fitted_at_least),
        plain(finding.counted_at_least),
        f"{finding.trials:,}",
    )


def cohorts(finding: Finding) -> str:
    """Return how cohorts were chosen, and what the other clients did, in words."""
    others = ", others against" if finding.scene.opposed else ""
    return f"{finding.scene.draw}{others}"


def write_audit(path: Path, title: str, report: Report, verdict: str) -> Path:
    """Write the whole page; returns its path."""
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(one)) + "</tr>"
        for one in report.findings
    )
    caption = f"Epsilon at delta {report.run.config.privacy.delta:g}; bounds hold with 95 % confidence each."
    charts = "".join(
        chart for number, one in enumerate(report.findings) for chart in _charts(number, one)
    )
    kind = "banner warning" if report.exceeded() else "banner"
    body = (
        f"<header><h1>Audit</h1><p class='soft'>{escape(title)}</p><p class='{kind}'>{escape(verdict)}</p></header>"
        f"<main><h2>Claims and what was proved</h2><div class='card scroll'><table><caption>{caption}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"<h2>Scores</h2><div class='grid'>{charts}</div></main>"
    )
    return write_page(path, "audit", body)


def _charts(number: int, finding: Finding) -> tuple[str, str]:
    name = f"{finding.what}, {finding.adversary}, {cohorts(finding)}"
    sample = finding.sample
    both = np.concatenate([sample.absent, sample.present])
    low, high = np.quantile(both, [0.002, 0.998])
    edges = np.linspace(low, max(high, low + 1e-9), _BINS + 1)
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    worlds = []
    for label, values, color in (
        ("canary absent", sample.absent, COLORS[0]),
        ("canary present", sample.present, COLORS[1]),
    ):
        counts, _ = np.histogram(values, edges)
        worlds.append(Line(label, middles, (counts / len(values)).tolist(), color))
    alt = f"Scores of {name}, in both worlds."
    scores = line_chart(f"scores-{number}", alt, worlds, _SHARE, Axis("score", plain))
    alarms, misses = trade_off(sample)
    chosen = np.unique(np.linspace(0, len(alarms) - 1, _POINTS).astype(int))
    lines = [Line("seen", alarms[chosen].tolist(), misses[chosen].tolist(), COLORS[1])]
    if finding.claimed is not None:
        grid = np.linspace(0, 1, 501)
        floor = claimed_trade_off(finding.claimed, finding.delta, grid)
        lines.append(Line("claimed floor", grid.tolist(), floor.tolist(), COLORS[0], "dashed"))
    curve = line_chart(f"trade-off-{number}", f"Trade-off of {name}.", lines, _MISSES, _ALARMS)
    note = "A sound run's curve stays above its claim."
    return (
        figure(f"Scores: {name}", "How much likelier the observation is with the canary.", scores),
        figure(f"Trade-off: {name}", note, curve),
    )
