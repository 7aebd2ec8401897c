"""TensorBoard gets every number of every round once, also of a run that was resumed."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedsketch.conf import Config, compose
from fedsketch.errors import ConfigError
from fedsketch.server.observers.tensorboard import TensorBoard
from fedsketch.server.observers.tracking import TrackerAndDisplay, refuse_a_missing_tracker, tracked
from fedsketch.server.rounds import Rounds
from tests.small import plain

CONFIG = compose(["tracking=tensorboard", "rounds=3"])
ROW: dict[str, Any] = {
    "round": 1,
    "accuracy": 0.5,
    "loss": None,
    "private": True,
    "epsilon": {"model": 1.5, "server": None},
    "budget_against": "server",
}


class _Writer:
    """What torch's writer is asked for."""

    def __init__(self, place: str, purge_step: int) -> None:
        self.place, self.purge_step = place, purge_step
        self.scalars: list[tuple[str, float, int]] = []
        self.texts: dict[str, str] = {}
        self.closed = False

    def add_scalar(self, key: str, value: float, step: int) -> None:
        self.scalars.append((key, value, step))

    def add_text(self, key: str, text: str, step: int) -> None:
        self.texts[key] = text

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[_Writer]:
    """All writers that were opened, instead of the package's."""
    writers: list[_Writer] = []
    module = ModuleType("torch.utils.tensorboard")

    def make(place: str, purge_step: int) -> _Writer:
        writers.append(_Writer(place, purge_step))
        return writers[-1]

    module.SummaryWriter = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return writers


def _played(folder: Path, config: Config = CONFIG, done: int = 0) -> None:
    tracker = TensorBoard(config.tracking, folder)  # type: ignore[arg-type]
    tracker.began(config, done, "Nothing is private here.")
    tracker.round_done({**ROW, "round": done + 1})
    tracker.ended({"rounds": done + 1}, folder / "report.html")


def test_every_number_of_a_round_is_written_and_nothing_else(
    made: list[_Writer], tmp_path: Path
) -> None:
    _played(tmp_path)
    (writer,) = made
    assert writer.scalars == [("accuracy", 0.5, 1), ("epsilon/model", 1.5, 1)]
    assert writer.texts["guarantee"] == "Nothing is private here."
    assert '"rounds": 3' in writer.texts["configuration"]
    assert writer.closed


def test_rounds_that_are_played_again_are_hidden(made: list[_Writer], tmp_path: Path) -> None:
    _played(tmp_path)
    _played(tmp_path, done=1)
    assert [writer.purge_step for writer in made] == [1, 2]


def test_each_run_has_a_folder_of_its_own(made: list[_Writer], tmp_path: Path) -> None:
    _played(tmp_path / "run")
    shared = compose(["tracking=tensorboard", f"tracking.folder={tmp_path}/board"])
    _played(tmp_path / "run", shared)
    places = [str(tmp_path / "run" / "tensorboard"), str(tmp_path / "board" / "run")]
    assert [writer.place for writer in made] == places


def test_a_finished_run_that_is_resumed_writes_nothing(made: list[_Writer], tmp_path: Path) -> None:
    tracker = TensorBoard(CONFIG.tracking, tmp_path)  # type: ignore[arg-type]
    tracker.began(CONFIG, 3, "")
    tracker.ended({"rounds": 3}, tmp_path / "report.html")
    assert made == []


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_without_its_package_a_tracker_is_refused_before_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsketch.server.observers.tracking.find_spec", lambda package: None)
    with pytest.raises(ConfigError) as caught:
        Rounds(compose(plain(f"tracking={name}")), tmp_path / "run", None)  # type: ignore[arg-type]
    assert f"pip install 'fedsketch[{name}]'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    refuse_a_missing_tracker(compose(plain()))


def test_with_its_package_it_is_told_beside_the_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsketch.server.observers.tracking.find_spec", lambda package: object())
    assert isinstance(tracked(CONFIG, tmp_path, None), TrackerAndDisplay)  # type: ignore[arg-type]


def test_the_package_itself_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _played(tmp_path)
    _played(tmp_path, done=1)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    read = [(event.step, event.value) for event in events.Scalars("epsilon/model")]
    assert read == [(1, 1.5), (2, 1.5)]
