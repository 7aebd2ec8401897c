"""Numbers and names for people: the same on the terminal, in reports and in plots."""

import math
from collections.abc import Iterable, Mapping

from fedsketch.conf.settings import Metric

# The adversaries that every run accounts for, from those who see least to those who see most.
EVERYWHERE = ("model", "client", "server")
_UNITS = ("B", "kB", "MB", "GB", "TB")


def in_order(adversaries: Iterable[str]) -> list[str]:
    """Each once: first those that every run has, then those of one strategy."""
    names = list(dict.fromkeys(adversaries))
    return [
        *(name for name in EVERYWHERE if name in names),
        *(name for name in names if name not in EVERYWHERE),
    ]


def short_epsilons(spent: Mapping[str, float | None]) -> str:
    """`model/client/server`; who else is accounted for has a line in the tables."""
    shown = [spent[name] for name in EVERYWHERE if name in spent]
    return "/".join("∞" if value is None else f"{value:.2f}" for value in shown)


def best_guess(epsilon: float, delta: float) -> float:
    """With which chance somebody is right, at best, about whether a unit's contribution was in, who thought both equally likely before.

    A guess says "in" with chance p if it was in and q if not, and is right with chance (p + 1 - q) / 2. By (epsilon, delta)-DP
    p <= e^epsilon q + delta and 1 - q <= e^epsilon (1 - p) + delta. Their sum gives (p - q)(1 + e^epsilon) <= e^epsilon - 1 + 2 delta,
    hence (p + 1 - q) / 2 <= (e^epsilon + delta) / (e^epsilon + 1).
    """
    rest = math.exp(-epsilon)
    return min(1.0, (1.0 + delta * rest) / (1.0 + rest))


def plain(value: float) -> str:
    """A number as short as it reads well."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def metric(kind: Metric, value: float) -> str:
    """A value of this metric."""
    return percent(value) if kind.percent else plain(value)


def name(kind: Metric) -> str:
    """A metric as the title of a picture or a column."""
    return f"{kind.name[0].upper()}{kind.name[1:]}"


def size(count: float) -> str:
    """Bytes in decimal units, three digits."""
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
