"""Reads a run's folder, finished or not. Only metrics.jsonl must exist."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedsketch.errors import ReportError
from fedsketch.server.report.number_format import in_order
from fedsketch.server.run_folder import RunFolder


@dataclass(frozen=True)
class Run:
    """The contents of a run's folder."""

    folder: Path
    rows: list[dict[str, Any]]
    config: dict[str, Any]
    config_text: str
    summary: dict[str, Any]

    def series(self, *path: str) -> tuple[list[float], list[float]]:
        """Return the rounds that have a number at this path, and the numbers."""
        found = [(row["round"], number(row, *path)) for row in self.rows]
        kept = [(count, value) for count, value in found if value is not None]
        return [count for count, _ in kept], [value for _, value in kept]

    def last(self, *path: str) -> float | None:
        """Return the number at this path after the last round that has one."""
        values = self.series(*path)[1]
        return values[-1] if values else None

    def adversaries(self) -> list[str]:
        """Return all adversaries with an epsilon, even if it is null (no guarantee)."""
        kept = [row["epsilon"] for row in self.rows if isinstance(row.get("epsilon"), dict)]
        return in_order(name for epsilon in kept for name in epsilon)

    def in_words(self) -> dict[str, str]:
        """Return the adversaries in words, if the run has them, and who is trusted."""
        stated = at(self.summary, "adversaries") or {}
        return {name: str(stated[name]) for name in in_order(stated)}

    def bound(self) -> str:
        """Return the adversary that the budget is for."""
        stated = [row["budget_against"] for row in self.rows if "budget_against" in row]
        return str(stated[-1]) if stated else str(at(self.config, "privacy", "against") or "model")

    def setting(self, key: str) -> str:
        value = at(self.config, *key.split("."))
        return "unknown" if value is None else str(value)

    def seconds(self) -> float:
        total = number(self.summary, "seconds")
        return sum(self.series("seconds", "round")[1]) if total is None else total

    def not_private(self) -> str | None:
        """Return why no epsilon of this run holds; None if it holds. For an unfinished run, the settings give the
        reason."""
        stated = at(self.summary, "not_private")
        seeded = self.setting("privacy.randomness") == "seeded"
        plain = number(self.config, "privacy", "noise_multiplier") == 0
        if stated is None and (
            seeded or plain or any(row.get("private") is False for row in self.rows)
        ):
            return "its noise is reproducible" if seeded and not plain else "nothing is noised"
        return stated


def at(tree: Any, *path: str) -> Any:
    """Return the value at nested keys; None if there is none."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def number(tree: Any, *path: str) -> float | None:
    """Return the finite number at nested keys; None if there is none."""
    value = at(tree, *path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def read_run(folder: Path) -> Run:
    """Read a run's folder. A kill may have cut off the last line of the metrics, which is then ignored."""
    files = RunFolder(folder)
    metrics = files.metrics
    if not metrics.is_file():
        raise ReportError(f"{folder} is no run folder: it has no {metrics.name}.")
    rows = []
    lines = _read(metrics).split("\n")
    for count, line in enumerate(lines, start=1):
        try:
            row = json.loads(line or "null")
        except json.JSONDecodeError as error:
            if count == len(lines):
                break
            message = f"{metrics}, line {count}, is not JSON ({error.msg}): correct or delete it."
            raise ReportError(message) from error
        if row is not None and number(row, "round") is None:
            raise ReportError(
                f"{metrics}, line {count}, has no round number: correct or delete it."
            )
        rows += [] if row is None else [row]
    config_text = _read(files.config)
    try:
        config = yaml.safe_load(config_text)
        summary = json.loads(_read(files.summary) or "null")
    except yaml.YAMLError as error:
        raise ReportError(f"{files.config} is not YAML: correct or delete it.") from error
    except json.JSONDecodeError as error:
        raise ReportError(f"{files.summary} is not JSON: correct or delete it.") from error
    config, summary = (tree if isinstance(tree, dict) else {} for tree in (config, summary))
    return Run(folder, rows, config, config_text, summary)


def find_runs(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run, otherwise all runs below it, with `10` after `9`."""
    if not folder.is_dir():
        raise ReportError(
            f"{folder} is not a folder: name a run folder, or one with runs below it."
        )
    metrics = RunFolder(folder).metrics
    if metrics.is_file():
        return [folder]
    found = [run.path for run in RunFolder.below(folder)]
    if not found:
        raise ReportError(f"{folder} holds no run: there is no {metrics.name} in it or below it.")

    def order(path: Path) -> list[tuple[int, str]]:
        parts = re.split(r"(\d+)", str(path.relative_to(folder)))
        return [(len(part) if part.isdigit() else 0, part) for part in parts]

    return sorted(found, key=order)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
