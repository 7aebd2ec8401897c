"""Whole runs as a user starts them, in this process and in others."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime import cli

Command = Callable[..., None]
Start = Callable[..., subprocess.Popen[str]]


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
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
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
