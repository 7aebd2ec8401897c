"""Numbers for people: the same on the terminal, in reports and in plots."""

_UNITS = ("B", "kB", "MB", "GB", "TB")


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
