"""Numbers and names for people: the same on the terminal, in reports and in plots."""

from collections.abc import Iterable, Mapping

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


def plain(value: float) -> str:
    """A number as short as it reads well."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


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
