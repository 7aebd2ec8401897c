"""What a person sees of a run: a first line, a live bar, a final table and the path of the report."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedsketch.conf import Config
from fedsketch.conf.settings import Metric
from fedsketch.server.report.number_format import (
    EVERYWHERE,
    duration,
    in_order,
    metric,
    short_epsilons,
    size,
)


class ConsoleProgress:
    """A `Display` that shows a bar on a terminal, and elsewhere prints a line for every tenth of the run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, status="starting")
        self._reached: float | None = None
        self._explained = False

    def __enter__(self) -> ConsoleProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress.live.is_started:
            self._progress.stop()

    def began(self, config: Config, done: int, guarantee: str) -> None:
        self._console.print(
            f"[bold]{config.strategy.name}[/bold] on {config.data.name} ({config.model.name}), "
            f"{config.clients.per_round} of {config.clients.total} clients per round, secagg {config.secagg.name}, "
            f"runtime {config.runtime.name}",
            soft_wrap=True,
            highlight=False,
        )
        self._console.print(guarantee, soft_wrap=True, highlight=False)
        if done:
            self._console.print(f"Resuming after round {done}.", highlight=False)
        self._rounds, self._metric, self._metrics = (
            config.rounds,
            config.task.headline,
            config.task.all_metrics,
        )
        self._progress.update(self._task, total=config.rounds, completed=done, status="")
        if self._console.is_terminal:
            self._progress.start()

    def notes(self, sentence: str) -> None:
        """Print something that the user should know, above the bar. It may quote a device."""
        self._console.print(sentence, soft_wrap=True, highlight=False, markup=False)

    def round_done(self, row: dict[str, Any]) -> None:
        value = row.get(self._metric.name)
        self._reached = value if value is not None else self._reached
        dropped = f"  dropped {row['dropped']}" if row["dropped"] else ""
        mark = "" if row["private"] else " (NOT PRIVATE)"
        status = (
            f"{self._metric.name} {_shown(self._metric, self._reached)}  epsilon "
            f"{short_epsilons(row['epsilon'])}{mark}  up {size(row['uplink_bytes'])}  down "
            f"{size(row['downlink_bytes'])}{dropped}"
        )
        if not self._explained:
            self._explained = True
            whom = "/".join(name for name in in_order(row["epsilon"]) if name in EVERYWHERE)
            legend = f"epsilon: spent against {whom}; up, down: per client and round"
            self._console.print(legend, soft_wrap=True, highlight=False)
        self._progress.update(self._task, completed=row["round"], status=status)
        if not self._console.is_terminal and row["round"] % max(1, self._rounds // 10) == 0:
            self._console.print(
                f"{datetime.now():%H:%M:%S}  round {row['round']}/{self._rounds}  {status}",
                soft_wrap=True,
                highlight=False,
            )

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        self.__exit__(None, None, None)
        if summary["stopped"]:
            self._console.print(summary["stopped"], style="bold", highlight=False, markup=False)
        table = Table(show_header=False)
        table.add_row("rounds", str(summary["rounds"]))
        for kind in self._metrics:
            table.add_row(kind.name, _shown(kind, summary.get(kind.name)))
        if best := summary.get("best"):
            table.add_row(
                "best model",
                f"after round {best['round']}, by {best['metric']} on the validation examples",
            )
            for kind in self._metrics:
                table.add_row(
                    f"{kind.name} of the best model", _shown(kind, best["test"].get(kind.name))
                )
        for name, result in ((summary.get("evaluation") or {}).get("metrics") or {}).items():
            table.add_row(f"{name} on devices", on_devices(result))
        if not summary["private"]:
            table.add_row("NOT PRIVATE", summary["not_private"])
        for adversary in in_order(summary["epsilon"]):
            value = summary["epsilon"][adversary]
            result = (
                "no guarantee" if value is None else f"{value:.3g} at delta {summary['delta']:g}"
            )
            table.add_row(f"epsilon against {adversary}", result)
        table.add_row("trained parameters", f"{summary['parameters']:,}")
        if summary.get("frozen"):
            table.add_row("frozen parameters", f"{summary['frozen']:,}")
        table.add_row("sent per client, whole run", size(summary["uplink_bytes"]))
        table.add_row("received per client, whole run", size(summary["downlink_bytes"]))
        table.add_row("time", duration(summary["seconds"]))
        self._console.print(table)
        for adversary in in_order(summary["adversaries"]):
            who = f"{adversary}: {summary['adversaries'][adversary]}"
            self._console.print(who, soft_wrap=True, highlight=False)
        self._console.print(f"Report: {report}", soft_wrap=True, highlight=False)


def _shown(kind: Metric, value: float | None) -> str:
    return "-" if value is None else metric(kind, value)


def on_devices(result: dict[str, Any]) -> str:
    """Return what devices measured for the last model: the mean with the standard deviation of its noise, and the
    means of groups."""
    groups = ", ".join(f"{value:.3g}" for value in result["groups"])
    spread = f"; groups {groups}" if groups else ""
    return f"{result['mean']:.3g}, noise {result['noise']:.2g}{spread}"
