"""The console scripts: there, and quiet when they are interrupted before they can do anything."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
CALL = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from fedsketch.runtime.commands import _call; sys.exit(_call('slow'))"
)
INTERRUPTED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


# Tests that run in the background would ignore SIGINT.
HEARING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "


def _called(folder: Path, module: str, before: str = HEARING) -> "subprocess.CompletedProcess[str]":
    (folder / "slow.py").write_text(module)
    return subprocess.run(
        [sys.executable, "-c", before + CALL, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("name", [n for n in SCRIPTS if "commands" in SCRIPTS[n]])
def test_scripts_are_there(name: str) -> None:
    module, _, function = SCRIPTS[name].partition(":")
    assert callable(getattr(import_module(module), function))


def test_ctrl_c_during_imports_is_one_sentence(tmp_path: Path) -> None:
    done = _called(tmp_path, f"{INTERRUPTED}import time\ntime.sleep(30)\n")
    assert done.returncode == 130
    assert done.stderr == "fedsketch: interrupted.\n"


def test_ctrl_c_afterwards_is_one_sentence_too(tmp_path: Path) -> None:
    done = _called(tmp_path, f"def main():\n    {INTERRUPTED.replace(chr(10), chr(10) + '    ')}")
    assert done.returncode == 130
    assert done.stderr == "fedsketch: interrupted.\n"


def test_a_job_in_the_background_ignores_ctrl_c(tmp_path: Path) -> None:
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    done = _called(tmp_path, f"{INTERRUPTED}def main():\n    return 7\n", ignoring)
    assert (done.returncode, done.stderr) == (7, "")
