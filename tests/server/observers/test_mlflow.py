"""MLflow gets one run for a run, resumed or not, with its settings, its numbers and its files."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from fedsketch.conf import compose
from fedsketch.errors import ConfigError
from fedsketch.server.observers.mlflow import MLflow

CONFIG = compose(["tracking=mlflow", "rounds=3"])
ROW: dict[str, Any] = {
    "round": 1,
    "accuracy": 0.5,
    "loss": None,
    "private": True,
    "epsilon": {"model": 1.5, "eavesdropper (r_secret)": 0.25},
}


class _Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class _Param(NamedTuple):
    key: str
    value: str


class _Refusal(Exception):
    pass


class _Store:
    """A tracking server, and the client that asks it."""

    def __init__(self) -> None:
        self.experiments: list[str] = []
        self.metrics: dict[str, list[_Metric]] = {}
        self.params: dict[str, dict[str, str]] = {}
        self.artifacts: dict[str, list[str]] = {}
        self.ended: list[str] = []
        self.broken = False

    def __call__(self, tracking_uri: str | None) -> "_Store":
        return self

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        if self.broken:
            raise _Refusal("no such host\nand many lines")
        return SimpleNamespace(experiment_id=name) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return name

    def create_run(self, experiment: str, run_name: str) -> SimpleNamespace:
        assert experiment in self.experiments
        run = f"{run_name}-{len(self.metrics)}"
        self.metrics[run], self.params[run], self.artifacts[run] = [], {}, []
        return SimpleNamespace(info=SimpleNamespace(run_id=run))

    def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(params) <= 100
        self.metrics[run] += metrics
        self.params[run].update(params)

    def set_tag(self, run: str, key: str, value: str) -> None:
        self.params[run][key] = value

    def log_artifact(self, run: str, path: str) -> None:
        self.artifacts[run].append(Path(path).name)

    def set_terminated(self, run: str) -> None:
        self.ended.append(run)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> _Store:
    """Stands for the package, which is heavy."""
    made = _Store()
    modules = {
        name: ModuleType(name) for name in ("mlflow", "mlflow.entities", "mlflow.exceptions")
    }
    modules["mlflow"].MlflowClient = made  # type: ignore[attr-defined]
    modules["mlflow.entities"].Metric, modules["mlflow.entities"].Param = _Metric, _Param  # type: ignore[attr-defined]
    modules["mlflow.exceptions"].MlflowException = _Refusal  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    return made


def _played(folder: Path, *rounds: int, end: bool = False) -> None:
    folder.mkdir(exist_ok=True)
    tracker = MLflow(CONFIG.tracking, folder)  # type: ignore[arg-type]
    tracker.began(CONFIG, min(rounds, default=3) - 1, "Nothing is private here.")
    for current in rounds:
        tracker.round_done({**ROW, "round": current})
    if end:
        tracker.ended({"rounds": 3}, folder / "report.html")


def test_settings_and_numbers_arrive_under_names_that_mlflow_takes(
    store: _Store, tmp_path: Path
) -> None:
    _played(tmp_path / "run", 1, 2)
    assert [(m.key, m.value, m.step) for m in store.metrics["run-0"]] == [
        (key, value, step)
        for step in (1, 2)
        for key, value in (
            ("accuracy", 0.5),
            ("epsilon/model", 1.5),
            ("epsilon/eavesdropper _r_secret_", 0.25),
        )
    ]
    assert store.params["run-0"]["clients.total"] == "60"
    assert store.params["run-0"]["guarantee"] == "Nothing is private here."


def test_a_resumed_run_goes_on_with_the_same_run_of_mlflow(store: _Store, tmp_path: Path) -> None:
    _played(tmp_path / "run", 1)
    _played(tmp_path / "run", 2, 3, end=True)
    assert [metric.step for metric in store.metrics["run-0"]] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert list(store.metrics) == store.ended == ["run-0"]


def test_the_files_are_handed_over_at_the_end(store: _Store, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "report.html").write_text("")
    (run / "model.safetensors").write_text("")
    _played(run, 3, end=True)
    assert store.artifacts["run-0"] == ["report.html", "model.safetensors"]


def test_a_run_without_a_round_leaves_nothing(store: _Store, tmp_path: Path) -> None:
    _played(tmp_path / "run", end=True)
    assert store.metrics == {}


def test_a_server_that_does_not_answer_is_a_sentence(store: _Store, tmp_path: Path) -> None:
    store.broken = True
    with pytest.raises(ConfigError) as caught:
        MLflow(CONFIG.tracking, tmp_path)  # type: ignore[arg-type]
    assert "no such host" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_package_itself_keeps_what_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/store.db")
    _played(tmp_path / "run", 1, 2, end=True)
    client = mlflow.MlflowClient()
    run = (tmp_path / "run" / "mlflow_run.txt").read_text().strip()
    assert [m.value for m in client.get_metric_history(run, "epsilon/model")] == [1.5, 1.5]
    assert client.get_run(run).data.params["rounds"] == "3"
    assert client.get_run(run).info.status == "FINISHED"
