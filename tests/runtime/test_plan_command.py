"""The command fedsketch-plan."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsketch.runtime import plan_command

Plan = Callable[..., None]


@pytest.fixture
def fedsketch_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plan:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> None:
        monkeypatch.setattr("sys.argv", ["fedsketch-plan", *arguments])
        plan_command.main()

    return call


def test_it_prints_a_table_and_writes_the_plan_without_training(
    fedsketch_plan: Plan, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fedsketch_plan("hydra.run.dir=there", "clients.total=10", "clients.per_round=10", "rounds=4")
    printed = capsys.readouterr().out
    for word in (
        "Noise multiplier",
        "epsilon against server",
        "sent per client",
        "ring",
        "there/plan.json",
    ):
        assert word in printed
    written = json.loads((tmp_path / "there" / "plan.json").read_text())
    assert f"{written['noise_multiplier']:.4g}" in printed
    assert {path.name for path in (tmp_path / "there").iterdir()} == {"plan.json", "plan.svg"}


@pytest.mark.parametrize(
    "wrong", ["privacy.epsilon=-1", "strategy=nothing", "model=lenet5", "secagg.bits=17"]
)
def test_what_cannot_run_cannot_be_planned(
    fedsketch_plan: Plan, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        fedsketch_plan(wrong, "privacy.epsilon=0.01" if "secagg" in wrong else "rounds=3")
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedsketch: ")
