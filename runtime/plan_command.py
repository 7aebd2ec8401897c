"""The command `fedsketch-plan <overrides>`: prints what a run with this configuration would do, without starting it."""

from __future__ import annotations

import sys

from fedsketch.conf.composition import compose_with_folder
from fedsketch.runtime.cli import one_sentence
from fedsketch.runtime.environment import refuse_missing_devices
from fedsketch.runtime.help import PLAN, answer
from fedsketch.server.report.number_format import in_order, size
from fedsketch.server.run_folder import RunFolder


def main() -> None:
    """Entry point of the console script."""
    if text := answer(PLAN, sys.argv[1:]):
        print(text)
        return
    from rich.console import Console
    from rich.table import Table

    from fedsketch.server.observers.tracking import refuse_a_missing_tracker
    from fedsketch.server.plan import make_plan
    from fedsketch.server.sums import sums_facts

    with one_sentence():
        config, folder = compose_with_folder(sys.argv[1:])
        refuse_missing_devices(config)
        if config.runtime.name != "deployment":  # in a deployment the tracker is on another machine
            refuse_a_missing_tracker(config)
        plan = make_plan(config)
        # Without hydra.run.dir nothing is written.
        named = any(argument.startswith("hydra.run.dir=") for argument in sys.argv[1:])
        figure = plan.save(folder) if named else None
    console = Console()
    console.print(plan.guarantee, soft_wrap=True, highlight=False)
    table = Table(show_header=False)
    early = (
        ""
        if plan.ends_after is None
        else f"; the budget ends the run after round {plan.ends_after}"
    )
    table.add_row("rounds", f"{plan.rounds}{early}")
    table.add_row(
        "trained parameters, and numbers sent", f"{plan.parameters:,}, {plan.upload_size:,}"
    )
    if plan.frozen:
        sent = f"sent to each device once ({size(plan.frozen_bytes)})"
        words = sent if plan.frozen_bytes else "made from the seed by each device"
        table.add_row("frozen parameters", f"{plan.frozen:,}, {words}")
    table.add_row("noise multiplier", f"{plan.noise_multiplier:.4g}")
    for adversary in in_order(plan.epsilon):
        value = plan.epsilon[adversary]
        words = "no guarantee" if value is None else f"{value:.4g} at delta {plan.delta:g}"
        if (
            plan.budget is not None
            and adversary == plan.budget_against
            and (plan.epsilon_of_training or 0) > plan.budget
        ):
            words += f" after all rounds, above the budget of {plan.budget:g}"
        table.add_row(f"epsilon against {adversary}", words)
    if plan.not_private is not None:
        table.add_row("NOT PRIVATE", plan.not_private)
    table.add_row("sent per client and round", size(plan.uplink_bytes))
    table.add_row("received per client and round", size(plan.downlink_bytes))
    for name, fact in {**sums_facts(plan.sums), **plan.mechanism_facts}.items():
        table.add_row(name, fact)
    for name, fact in plan.evaluation_facts().items():
        table.add_row(name, fact)
    if plan.best_snr is not None:
        table.add_row("signal to noise at best", f"{plan.best_snr:.3g}")
    console.print(table)
    for adversary in in_order(plan.adversaries):
        who = f"{adversary}: {plan.adversaries[adversary]}"
        console.print(who, soft_wrap=True, highlight=False)
    if figure is not None:
        console.print(f"Plan: {RunFolder(folder).plan}", soft_wrap=True, highlight=False)
        console.print(f"Epsilon over rounds: {figure}", soft_wrap=True, highlight=False)
