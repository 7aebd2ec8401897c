"""`--help` and `--version` of the commands that take a configuration: quick, complete and true."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from fedsketch.attacks import command as audit_command
from fedsketch.conf import compose
from fedsketch.conf.composition import FOLDER, compose_with_folder
from fedsketch.runtime import cli, plan_command

Fedsketch = Callable[..., Any]
MAINS = {
    "fedsketch": cli.main,
    "fedsketch-plan": plan_command.main,
    "fedsketch-audit": audit_command.main,
}
SLOW = ("hydra", "omegaconf", "torch", "flwr", "ray", "matplotlib", "scipy", "sklearn")


@pytest.fixture(params=MAINS)
def sections(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> dict[str, dict[str, str]]:
    """The help of a command: by section, the left column and the right one (of a first line)."""
    monkeypatch.setattr("sys.argv", [request.param, "--help"])
    MAINS[request.param]()
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) < 120
    found = {}
    for part in printed.split("\n\n")[1:]:
        title, *lines = part.splitlines()
        rows = [line.strip().partition("  ") for line in lines if not line.startswith("   ")]
        found[title] = {left: right.strip() for left, _, right in rows}
    return found


def test_help_lists_every_choice_of_every_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fedsketch", "-h"])
    cli.main()
    printed = " ".join(capsys.readouterr().out.split())
    for group in {file.parent for file in FOLDER.glob("*/**/*.yaml")}:
        choices = sorted(file.stem for file in group.glob("*.yaml"))
        row = f" {group.relative_to(FOLDER).as_posix()} {', '.join(choices)} "
        assert row in f"{printed} ".replace("*", "")
    assert " digits*, " in printed


def test_every_common_key_exists(sections: dict[str, dict[str, str]]) -> None:
    keys = sections["Common keys:"]
    assert len(keys) > 5
    assert all(keys.values())
    for key in keys:
        if key == "hydra.run.dir":
            assert compose_with_folder([f"{key}=there"])[1] == Path("there")
            continue
        config: Any = compose([])
        for part in key.split("."):
            config = getattr(config, part)


def test_every_example_is_a_configuration(sections: dict[str, dict[str, str]]) -> None:
    examples = sections["Examples:"]
    assert len(examples) == 3
    for example in examples:
        overrides = [
            word for word in shlex.split(example)[1:] if word not in ("-m", "--trials", "20000")
        ]
        compose([word.split(",")[0] for word in overrides])


@pytest.mark.parametrize("module", ["runtime.cli", "runtime.plan_command", "attacks.command"])
@pytest.mark.parametrize("option", ["--help", "-h", "--version"])
def test_help_and_version_import_nothing_slow(module: str, option: str) -> None:
    code = f"""
import sys
from fedsketch.{module} import main
sys.argv[1:] = [{option!r}]
main()
sys.exit(str([name for name in {SLOW} if name in sys.modules] or ""))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
    assert "fedsketch" in done.stdout


def test_version_is_that_of_fedsketch(fedsketch: Fedsketch) -> None:
    ended = fedsketch("--version", tiny=False)
    assert ended.out == f"fedsketch {version('fedsketch')}\n"


def test_hydras_own_help_is_still_there() -> None:
    """In a process of its own: it configures logging anew, and closes the handlers that were there."""
    code = "import sys; sys.argv = ['fedsketch', '--hydra-help']; from fedsketch.runtime.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "--multirun" in done.stdout
