"""Numbers and names as people read them: the same on the terminal, in reports and in charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fedsketch.conf.settings import Metric

# The adversaries of every run, from those who see least to those who see most.
EVERYWHERE = ("model", "client", "server")
_UNITS = ("B", "kB", "MB", "GB", "TB")


def in_order(adversaries: Iterable[str]) -> list[str]:
    """Return each adversary once: first those of every run, then those of one strategy only."""
    names = list(dict.fromkeys(adversaries))
    return [
        *(name for name in EVERYWHERE if name in names),
        *(name for name in names if name not in EVERYWHERE),
    ]


def short_epsilons(spent: Mapping[str, float | None]) -> str:
    """Return epsilons as `model/client/server`. Other adversaries have a row in the tables."""
    shown = [spent[name] for name in EVERYWHERE if name in spent]
    return "/".join("∞" if value is None else f"{value:.2f}" for value in shown)


def best_guess(epsilon: float, delta: float) -> float:
    """Return the largest probability with which somebody is right about whether a unit contributed, who before the run
    thought both equally likely.

    A guess says "in" with chance p if it was in and q if not, and is right with chance (p + 1 - q) / 2. By (epsilon,
    delta)-DP p <= e^epsilon q + delta and 1 - q <= e^epsilon (1 - p) + delta. Their sum gives (p - q)(1 + e^epsilon) <=
    e^epsilon - 1 + 2 delta, hence (p + 1 - q) / 2 <= (e^epsilon + delta) / (e^epsilon + 1).
    """
    rest = math.exp(-epsilon)
    return min(1.0, (1.0 + delta * rest) / (1.0 + rest))


def plain(value: float) -> str:
    """Return a number with as few digits as are needed."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def metric(kind: Metric, value: float) -> str:
    """Return a value of this metric as text."""
    return percent(value) if kind.percent else plain(value)


def name(kind: Metric) -> str:
    """Return the name of a metric as the title of a chart or a column."""
    return f"{kind.name[0].upper()}{kind.name[1:]}"


def size(count: float) -> str:
    """Return a number of bytes in decimal units, with three digits."""
    unit = 0
    while abs(count) >= 999.5 and unit < len(_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
