"""What `--help` and `--version` print. Nothing slow is imported for them: no Hydra, no torch, no Flower."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import yaml

from fedsketch.conf.plugins import FOLDER, configuration_folders
from fedsketch.errors import ConfigError

_WIDTH = 116
_KEYS = {
    "rounds": "rounds of training",
    "seed": "seed of data partition, model initialisation and batches",
    "device": "auto, cpu, cuda, cuda:1, ...; auto is CUDA if there is one",
    "clients.total": "clients that exist",
    "clients.per_round": "clients that are asked in a round",
    "clients.tolerated_dropouts": "share of a round's clients that may drop out",
    "clients.tolerated_losses": "share of a sum's clients, or their number, that may be lost after they sent",
    "privacy.epsilon": "the privacy budget over all rounds, at privacy.delta",
    "privacy.clip": "largest norm of what a client sends in a round, or adaptive",
    "privacy.against": "who the budget is against: server, client (fellow participants), model (who sees models only)",
    "data.root": "folder of a data set that is on disk",
    "validation.examples": "examples that the server holds out to find the best model; validation.patience stops early",
    "hydra.run.dir": "folder that the run writes into",
}


@dataclass(frozen=True)
class Command:
    """The texts of one command: calls and examples, each with what it does."""

    name: str
    purpose: str
    calls: dict[str, str]
    examples: dict[str, str]


FEDSKETCH = Command(
    name="fedsketch",
    purpose="Train a model with private federated learning.",
    calls={
        "fedsketch [GROUP=CHOICE ...] [KEY=VALUE ...]": "start a run",
        "fedsketch -m KEY=VALUE,VALUE ...": "start a run for each combination of values",
        "fedsketch resume=FOLDER": "resume an interrupted run from its folder",
        "fedsketch stop=FOLDER": "stop a run that was submitted with runtime=deployment",
        "fedsketch --cfg job": "print all keys with their values",
        "fedsketch --hydra-help": "print the options of Hydra, which reads the configuration",
        "fedsketch --version": "print the version",
    },
    examples={
        "fedsketch": "60 clients with handwritten digits, all in this process",
        "fedsketch strategy=dp_fedavg privacy.epsilon=4 rounds=20": "another strategy and budget",
        "fedsketch -m strategy=dome,dp_fedavg seed=0,1": "four runs to compare with fedsketch-report",
    },
)
PLAN = Command(
    name="fedsketch-plan",
    purpose="Print what a run would do, without training: noise, epsilon, bytes.",
    calls={
        "fedsketch-plan [GROUP=CHOICE ...] [KEY=VALUE ...]": "plan a run",
        "fedsketch-plan hydra.run.dir=FOLDER ...": "write plan.json and a picture of epsilon there too",
        "fedsketch-plan --version": "print the version",
    },
    examples={
        "fedsketch-plan": "the plan of the default run",
        "fedsketch-plan privacy.epsilon=2 rounds=100": "a smaller budget over more rounds",
        "fedsketch-plan secagg=none privacy.against=model": "what the server learns without masks",
    },
)
AUDIT = Command(
    name="fedsketch-audit",
    purpose="Attack a small version of a run with its own code, and compare what is learned with the claimed epsilon.",
    calls={
        "fedsketch-audit [GROUP=CHOICE ...] [KEY=VALUE ...]": "audit a run; exit code 1 if a claim is proved wrong",
        "fedsketch-audit --trials N": "scores of each adversary (4000)",
        "fedsketch-audit --rounds N": "rounds of the audited run, at most those of the run (2)",
        "fedsketch-audit --output FILE": "the HTML page (audit.html)",
        "fedsketch-audit --workers N": "processes (one per core)",
        "fedsketch-audit --version": "print the version",
    },
    examples={
        "fedsketch-audit": "audit the default run",
        "fedsketch-audit strategy=fed_sgm privacy.epsilon=2 --trials 20000": "another strategy, with more certainty",
        "fedsketch-audit clients.per_round=10 clients.sampling=poisson privacy.against=model": "a secret draw",
    },
)


def answer(command: Command, arguments: Sequence[str]) -> str | None:
    """Return what to print for `--help`, `-h` or `--version`; None if the arguments ask for none of them."""
    if "--help" in arguments or "-h" in arguments:
        return _help(command)
    if "--version" in arguments:
        return f"{command.name} {version('fedsketch')}"
    return None


def _help(command: Command) -> str:
    sections = [
        command.purpose,
        _section("Usage", command.calls),
        _section("Groups, with the default choice marked by *", _groups()),
        _section("Common keys", _KEYS),
        _section("Examples", command.examples),
    ]
    return "\n\n".join(sections)


def _section(title: str, rows: dict[str, str]) -> str:
    column = max(map(len, rows)) + 4
    lines = [
        textwrap.fill(
            f"  {name:<{column - 2}}{text}",
            _WIDTH,
            subsequent_indent=" " * column,
            break_on_hyphens=False,
        )
        for name, text in rows.items()
    ]
    return "\n".join([f"{title}:", *lines])


def _groups() -> dict[str, str]:
    """Return the choices of every group: files in the folders of conf/ and of installed packages."""
    lines = yaml.safe_load((FOLDER / "config.yaml").read_text())["defaults"]
    defaults = {
        group: name for line in lines if isinstance(line, dict) for group, name in line.items()
    }
    choices: dict[str, list[str]] = {}
    for folder in (FOLDER, *_installed_folders()):
        for file in sorted(folder.glob("*/**/*.yaml")):
            group = file.parent.relative_to(folder).as_posix()
            mark = "*" if defaults.get(group) == file.stem else ""
            choices.setdefault(group, []).append(file.stem + mark)
    return {group: ", ".join(names) for group, names in sorted(choices.items())}


def _installed_folders() -> list[Path]:
    """Return the folders of packages that can be used. A run reports what is wrong with the others; help leaves them
    out."""
    try:
        return [folder for _, folder in configuration_folders()]
    except ConfigError:
        return []
