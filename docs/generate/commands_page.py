"""Every command with its options, from the parsers that read them."""

import argparse
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from wrapping import item, page, wrapped

from fedsketch.client import enroll
from fedsketch.runtime import certificates, registration, schema_command
from fedsketch.runtime.help import AUDIT, FEDSKETCH, PLAN, Command
from fedsketch.server import export, gate
from fedsketch.server.report import command as report

ROOT = Path(__file__).parents[2]
_HYDRA = {"fedsketch": FEDSKETCH, "fedsketch-plan": PLAN, "fedsketch-audit": AUDIT}
_PARSED: dict[str, Callable[..., Any]] = {
    "fedsketch-report": report.main,
    "fedsketch-export": export.main,
    "fedsketch-schema": schema_command.main,
    "fedsketch-enroll": enroll.main,
    "fedsketch-certs": certificates.main,
    "fedsketch-register": registration.main,
    "fedsketch-gate": gate.main,
}
_NODE = """Start a device's node: Flower's SuperNode with the app that is installed on the device. All arguments are
those of `flower-supernode`, which `fedsketch-node --help` prints. `--isolation process` and
`--allow-runtime-dependency-installation` are refused, because they let code of the server in."""


class _Caught(BaseException):
    """Carries a parser out of the command that made it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def _parser_of(main: Callable[..., Any]) -> argparse.ArgumentParser:
    def caught(self: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        raise _Caught(self)

    with patch.object(argparse.ArgumentParser, "parse_args", caught):
        try:
            main([])
        except _Caught as found:
            return found.parser
    raise AssertionError(f"{main.__module__} has no parser")


def _options(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """Each argument as it is typed, and what it does."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        value = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
        if action.choices is not None:
            value = "|".join(map(str, action.choices))
        typed = ", ".join(action.option_strings)
        if not typed:
            typed = str(value)
        elif action.nargs != 0:
            typed = f"{typed} {value}"
        found.append((typed, action.help or ""))
    return found


def undocumented() -> list[str]:
    """Commands of pyproject.toml that are not on the page, and options without a word of help."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    missing = sorted(set(scripts) - {*_HYDRA, *_PARSED, "fedsketch-node"})
    for name, main in _PARSED.items():
        missing += [f"{name} {typed}" for typed, told in _options(_parser_of(main)) if not told]
    return missing


def _hydra(command: Command) -> list[str]:
    calls = [item(f"`{call}`: {told}") for call, told in command.calls.items()]
    examples = [f"{call}    # {told}" for call, told in command.examples.items()]
    return [
        f"## {command.name}",
        command.purpose,
        "\n".join(calls),
        "Examples:",
        "\n".join(
            [
                "<!-- not run: examples of --help; the pages about these commands run others -->",
                "```bash",
                *examples,
                "```",
            ]
        ),
    ]


def _parsed(name: str, main: Callable[..., Any]) -> list[str]:
    parser = _parser_of(main)
    options = [item(f"`{typed}`: {told}") for typed, told in _options(parser)]
    return [f"## {name}", wrapped(parser.description or ""), "\n".join(options)]


def commands() -> str:
    sections = [part for command in _HYDRA.values() for part in _hydra(command)]
    sections += [part for name, main in _PARSED.items() for part in _parsed(name, main)]
    sections += ["## fedsketch-node", wrapped(_NODE)]
    return page(
        "Commands",
        "For those who look an option up. `fedsketch`, `fedsketch-plan` and `fedsketch-audit` take the keys of the "
        "[configuration](configuration/index.md); the others have options of their own.",
        *sections,
    )
