"""Whole runs as a user starts them, in this process and in others."""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedsketch.client.app import app
from fedsketch.conf import compose
from fedsketch.conf.plugins import implementation, settings_class
from fedsketch.conf.schema import CohortRuntimeConfig
from fedsketch.runtime import cli
from fedsketch.runtime.batched_grid import BatchedGrid
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.server.rounds import Rounds
from tests.observers import Recorder, Stopped

Command = Callable[..., None]
Start = Callable[..., subprocess.Popen[str]]
Play = Callable[..., int]
ROOT = Path(__file__).parents[2]
CLI = "from fedsketch.runtime.cli import main; main()"


@pytest.fixture
def play(no_report: None, tmp_path: Path) -> Play:
    """Plays a run in a folder of `tmp_path`, or goes on with it, and tells how many rounds were already done."""

    def run(folder: str, *overrides: str, stop_after: int | None = None) -> int:
        config, recorder = compose(overrides), Recorder(stop_after)
        with simulated_devices(config), suppress(Stopped):
            cohort = isinstance(config.runtime, CohortRuntimeConfig)
            grid = BatchedGrid(app, config) if cohort else LocalGrid(app, config.clients.total)
            Rounds(config, tmp_path / folder, recorder).run(grid)
        return recorder.done

    return run


@pytest.fixture
def fedsketch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Command]:
    """The command in this process and in `tmp_path`; SystemExit comes out, logging is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    root, flower = logging.getLogger(), logging.getLogger("flwr")
    before = [(log, list(log.handlers), log.level, log.propagate) for log in (root, flower)]

    def call(*arguments: str) -> None:
        monkeypatch.setattr("sys.argv", ["fedsketch", *arguments])
        cli.main()

    yield call
    for log, handlers, level, propagate in before:
        for handler in set(log.handlers) - set(handlers):
            # Only files: absl's handler, if a test imports it first, would close pytest's own output.
            if isinstance(handler, logging.FileHandler):
                handler.close()
        log.handlers[:], log.level, log.propagate = handlers, level, propagate


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts python in a process of its own in `tmp_path`, ended after the test at the latest."""
    processes = []

    def popen(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
        return process

    yield popen
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def pip_install(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Installs folders of the repository by pip, from copies, because building leaves files behind; returns where they
    are then."""

    def install(*sources: str) -> Path:
        folder = tmp_path_factory.mktemp("installed")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        alone = ["--no-index", "--no-deps", "--no-build-isolation"]
        copies = [shutil.copytree(ROOT / source, folder / Path(source).name) for source in sources]
        subprocess.run([*pip, *alone, "--target", folder / "site", *copies], check=True)
        return folder / "site"

    return install


@pytest.fixture
def found_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Lets this process find the packages installed in a folder, until the test ends."""
    sites: list[Path] = []

    def find(site: Path) -> None:
        sites.append(site)
        settings_class.cache_clear()
        monkeypatch.syspath_prepend(site)

    yield find
    settings_class.cache_clear()
    implementation.cache_clear()
    theirs = {path.stem for site in sites for path in site.iterdir()}
    for name in [name for name in sys.modules if name.split(".")[0] in theirs]:
        del sys.modules[name]


@pytest.fixture
def call_with(start: Start) -> Callable[..., str]:
    """The command in a process that finds the packages installed in a folder; returns what it printed."""

    def run(site: Path, *arguments: str) -> str:
        path = os.pathsep.join([str(site), str(ROOT)])
        process = start("-c", CLI, *arguments, PYTHONPATH=path)
        output, _ = process.communicate(timeout=900)
        assert process.returncode == 0, output
        return output

    return run
