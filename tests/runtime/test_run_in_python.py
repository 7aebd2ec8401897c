"""`fedsketch.run` does in Python what the command does."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedsketch
from fedsketch.errors import ConfigError
from tests.small import small

SMALL = small("strategy=fedavg privacy=none secagg=none rounds=2", clients=3)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A run logs into its folder; what comes after this test shall not."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in [h for h in root.handlers if h not in handlers]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


def test_a_run_returns_its_folder_and_the_model_can_be_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fedsketch.run([*SMALL, f"hydra.run.dir={tmp_path / 'run'}"], quiet=True)
    assert folder == tmp_path / "run"
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert (folder / "overrides.txt").read_text().splitlines()[: len(SMALL)] == SMALL
    assert len(fedsketch.load(folder).classes) == 3
    assert capsys.readouterr().out == ""


def test_a_run_prints_its_progress_unless_it_shall_be_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fedsketch.run([*SMALL, "rounds=1", f"hydra.run.dir={tmp_path / 'run'}"])
    assert "fedavg on synthetic" in capsys.readouterr().out


def test_the_same_overrides_give_the_same_run(tmp_path: Path) -> None:
    results = []
    for name in ("first", "second"):
        folder = fedsketch.run([*SMALL, f"hydra.run.dir={tmp_path / name}"], quiet=True)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        results.append([row["accuracy"] for row in rows])
    assert results[0] == results[1]


@pytest.mark.parametrize("wrong", ["rounds=0", "no_such_key=1", "--help", "strategy=no_such"])
def test_what_cannot_be_run_raises_and_leaves_no_folder(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError):
        fedsketch.run([*SMALL, f"hydra.run.dir={tmp_path / 'run'}", wrong])
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    overrides = [*SMALL, "rounds=1", f"hydra.run.dir={tmp_path / 'run'}"]
    fedsketch.run(overrides, quiet=True)
    with pytest.raises(ConfigError, match="holds a run already"):
        fedsketch.run(overrides, quiet=True)
