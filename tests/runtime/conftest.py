"""The command line in this process: arguments in, exit code and output out."""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedsketch.runtime import cli
from tests.small import plain

TINY = plain("rounds=3", clients=4)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    def sentence(self) -> str:
        """The one line of a refusal: a test fails here if it was anything else."""
        assert self.code == 1
        assert "Traceback" not in self.out + self.err
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("fedsketch: ")
        return lines[0].removeprefix("fedsketch: ")


Fedsketch = Callable[..., Ended]


@contextmanager
def _logging_restored() -> Iterator[None]:
    loggers = [logging.getLogger(), logging.getLogger("flwr")]
    before = [(log, list(log.handlers), log.level, log.propagate) for log in loggers]
    yield
    for log, handlers, level, propagate in before:
        for handler in set(log.handlers) - set(handlers):
            # Only files: absl's handler, if a test imports it first, would close pytest's own output.
            if isinstance(handler, logging.FileHandler):
                handler.close()
        log.handlers[:], log.level, log.propagate = handlers, level, propagate


@pytest.fixture
def fedsketch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Fedsketch]:
    """Runs the command in `tmp_path`, with a tiny job unless `tiny=False`; logging is as before afterwards."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, tiny: bool = True) -> Ended:
        own = TINY if tiny else []
        options = [argument for argument in arguments if argument.startswith("-")]
        overrides = [argument for argument in arguments if not argument.startswith("-")]
        monkeypatch.setattr("sys.argv", ["fedsketch", *options, *own, *overrides])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    with _logging_restored():
        yield call


@pytest.fixture(scope="session")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    with _logging_restored(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fedsketch", *TINY, "rounds=2", f"hydra.run.dir={folder}"])
        cli.main()
    return folder


@pytest.fixture
def run(fedsketch: Fedsketch, _finished: Path, tmp_path: Path) -> Path:
    """The folder `run` of a finished run of two rounds, where `fedsketch` is called."""
    return Path(shutil.copytree(_finished, tmp_path / "run"))
