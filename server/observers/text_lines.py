"""Progress as lines for people, as `flwr run . --stream` shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsketch.conf import Config
from fedsketch.conf.settings import LOSS
from fedsketch.server.report.number_format import percent, plain


class LineProgress:
    """A `Display` that prints a line per round."""

    def __init__(self) -> None:
        self._rounds = 0
        self._metric = LOSS

    def notes(self, sentence: str) -> None:
        """Print something that the user should know."""
        _print(sentence)

    def began(self, config: Config, done: int, guarantee: str) -> None:
        self._rounds, self._metric = config.rounds, config.task.headline
        _print(
            f"{config.strategy.name} on {config.data.name} ({config.model.name}), {config.clients.per_round} of "
            f"{config.clients.total} clients per round, secagg {config.secagg.name}"
        )
        _print(guarantee)

    def round_done(self, row: dict[str, Any]) -> None:
        spent = row["epsilon"][row["budget_against"]]
        parts = [f"round {row['round']} of {self._rounds}"]
        value = row[self._metric.name]
        if value is not None:  # not every round is evaluated
            shown = percent(value) if self._metric.percent else plain(value)
            parts.append(f"{self._metric.name} {shown}")
        parts.append(
            "no guarantee"
            if spent is None
            else f"epsilon {spent:.3g} against {row['budget_against']}"
        )
        _print(", ".join(parts))

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        if summary["stopped"]:
            _print(summary["stopped"])
        if summary["not_private"]:
            _print(f"NOT PRIVATE: {summary['not_private']}.")
        _print(f"Report: {report}")


def _print(line: str) -> None:
    # One write per line, because other threads print too.
    print(f"fedsketch: {line}\n", end="", flush=True)
