"""Groups of runs that differ only in their seed: means over the runs, and their standard deviation."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedsketch.server.nested_values import leaves
from fedsketch.server.report.run_record import Run

# Largest number of settings in a name, and of folders of a group; the tables have the rest.
_SHOWN = 3


class Spread(NamedTuple):
    """A mean over runs and the standard deviation, which a single run does not have."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def text(self, form: Callable[[float], str]) -> str:
        """Return the spread as text, such as `87.3 % ± 1.2 %`."""
        return form(self.mean) + ("" if self.deviation is None else f" ± {form(self.deviation)}")


@dataclass(frozen=True)
class Group:
    """Runs whose settings are the same except for the seed. `label` is the name of the group in a legend."""

    number: int
    label: str
    runs: tuple[Run, ...]
    settings: Mapping[str, str]

    @property
    def first(self) -> Run:
        return self.runs[0]

    def spread(self, value: Callable[[Run], float | None]) -> Spread | None:
        """Return the spread of a number over the runs that have it."""
        return Spread.of([number for run in self.runs if (number := value(run)) is not None])

    def curve(
        self,
        cost: Callable[[Run], Sequence[float | None]],
        metric: Callable[[Run], Sequence[float | None]],
    ) -> list[tuple[float, Spread]]:
        """Return mean cost and mean metric after each round for which all runs have both."""
        by_run = []
        for run in self.runs:
            rows = zip(run.rows, cost(run), metric(run), strict=True)
            by_run.append(
                {r["round"]: (x, y) for r, x, y in rows if x is not None and y is not None}
            )
        common = [count for count in by_run[0] if all(count in known for known in by_run)]
        points = []
        for count in common:
            x, y = zip(*(known[count] for known in by_run), strict=True)
            spread = Spread.of(y)
            assert spread is not None
            points.append((statistics.fmean(x), spread))
        return points

    def folders(self, names: Mapping[Path, str]) -> str:
        """Return the names of the folders of the runs."""
        listed = [names[run.folder] for run in self.runs]
        more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        return f"{', '.join(listed[:_SHOWN])}{more}"


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Return the groups in the order of their first runs, with labels that differ."""
    by_settings: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        flat = {key: value for key, value in _settings(run).items() if key != "seed"}
        # A folder without settings is a group of its own.
        key = tuple(sorted(flat.items())) or (("folder", str(run.folder)),)
        by_settings.setdefault(key, []).append(run)
    members = [tuple(found) for found in by_settings.values()]
    settings = _differences([found[0] for found in members])
    labels = _labels([found[0] for found in members], settings)
    return [
        Group(number, label, found, differ)
        for number, (label, found, differ) in enumerate(
            zip(labels, members, settings, strict=True), start=1
        )
    ]


def folder_names(runs: Sequence[Run]) -> dict[Path, str]:
    """Return the paths of the runs' folders, without the part that they have in common."""
    paths = {run.folder: run.folder.resolve() for run in runs}
    common = os.path.commonpath([path.parent for path in paths.values()])
    return {folder: str(path.relative_to(common)) for folder, path in paths.items()}


def _settings(run: Run) -> dict[str, str]:
    return {key: _text(value) for key, value in leaves(run.config, ".")}


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


def _differences(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return the settings in which the runs differ, except for the seed. Settings below a group are compared only
    among runs that chose the same file of the group: a setting that only another strategy has is not a difference."""
    flat = [_settings(run) for run in runs]
    differ = []
    for key in dict.fromkeys(key for settings in flat for key in settings):
        choice = f"{key.split('.')[0]}.name"
        seen: dict[str | None, set[str | None]] = {}
        for settings in flat:
            same = None if key == choice else settings.get(choice)
            seen.setdefault(same, set()).add(settings.get(key))
        if any(len(values) > 1 for values in seen.values()):
            differ.append(key)
    own_columns = ("seed", "strategy.name", "data.name")
    return [
        {key: settings[key] for key in differ if key in settings and key not in own_columns}
        for settings in flat
    ]


def _labels(runs: Sequence[Run], settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a label for each run: number and strategy, the data set if there are several, and settings if they are
    few."""
    several = len({run.setting("data.name") for run in runs}) > 1
    labels = []
    for number, (run, differ) in enumerate(zip(runs, settings, strict=True), start=1):
        name = f"{number}: {run.setting('strategy.name')}"
        name += f" on {run.setting('data.name')}" if several else ""
        listed = [f"{key}={value}" for key, value in differ.items()]
        labels.append(
            marked(", ".join([name, *listed] if len(settings) <= _SHOWN else [name]), run)
        )
    return labels


def marked(name: str, run: Run) -> str:
    """Return the name of a run, with a mark if none of its epsilons holds, because such a run has not paid what the
    others have."""
    return name if run.not_private() is None else f"{name} (NOT PRIVATE)"
