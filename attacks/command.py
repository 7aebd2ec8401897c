"""The command `fedsketch-audit <overrides>`: attacks a run with its own code. Exit code 0: no claim is proved wrong; 1:
a claim is proved wrong; 2: the configuration is wrong, or nothing is claimed."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from pathlib import Path

from fedsketch.conf.composition import compose
from fedsketch.runtime.cli import one_sentence
from fedsketch.runtime.help import AUDIT, answer

EXCEEDED, WRONG = 1, 2


def main() -> None:
    """Entry point of the console script."""
    arguments = sys.argv[1:]
    if text := answer(AUDIT, arguments):
        print(text)
        return
    parser = ArgumentParser("fedsketch-audit", add_help=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--trials", type=_count)
    parser.add_argument("--rounds", type=_count)
    parser.add_argument("--output", type=Path, default=Path("audit.html"))
    parser.add_argument("--workers", type=_count, default=os.cpu_count() or 1)
    asked = parser.parse_intermixed_args(arguments)
    with one_sentence(WRONG):
        exceeded = _audit(asked.overrides, asked.trials, asked.rounds, asked.output, asked.workers)
    sys.exit(EXCEEDED if exceeded else 0)


def _audit(
    overrides: list[str], trials: int | None, rounds: int | None, output: Path, workers: int
) -> bool:
    from rich.console import Console
    from rich.table import Table

    from fedsketch.attacks.audit import TRIALS, audit
    from fedsketch.attacks.page import COLUMNS, cells, write_audit
    from fedsketch.attacks.shrink import ROUNDS
    from fedsketch.runtime.threads import fitting_threads

    config = compose(overrides)
    with fitting_threads(0):
        report = audit(config, trials or TRIALS, rounds or ROUNDS, workers)
    clients, played = report.run.config.clients, report.run.config.rounds
    console = Console()
    console.print(
        f"Simulated: {played} rounds with {clients.per_round} of {clients.total} clients. Epsilon at delta "
        f"{config.privacy.delta:g}.",
        soft_wrap=True,
        highlight=False,
    )
    table = Table(*COLUMNS)
    for finding in report.findings:
        table.add_row(*cells(finding))
    console.print(table)
    exceeded = report.exceeded()
    verdict = "No claim was proved wrong."
    if exceeded:
        names = ", ".join(sorted({one.adversary for one in exceeded}))
        verdict = f"PROVED WRONG: the claim against {names}. More was learned than it allows."
    console.print(verdict, soft_wrap=True, highlight=False)
    page = write_audit(output, " ".join(overrides) or "the default run", report, verdict)
    console.print(f"Page: {page}", soft_wrap=True, highlight=False)
    return bool(exceeded)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("at least 1")
    return value
