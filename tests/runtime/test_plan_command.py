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
        "server: a server that may lie and works with 1 of 10 clients",
        "model: those who see the models of all rounds, but take part in none",
        "sent per client",
        "ring",
        "there/plan.json",
    ):
        assert word in printed
    written = json.loads((tmp_path / "there" / "plan.json").read_text())
    assert f"{written['noise_multiplier']:.4g}" in printed
    assert {path.name for path in (tmp_path / "there").iterdir()} == {"plan.json", "plan.svg"}


def test_who_only_asks_finds_no_folder_afterwards(fedsketch_plan: Plan, tmp_path: Path) -> None:
    fedsketch_plan("rounds=2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (["privacy.noise_multiplier=0.1", "privacy.epsilon=1"], "a noise multiplier of 0.1"),
        (["data/partition=one_example", "clients.total=3000"], "3,000 clients"),
        (["clients.total=100000"], "100,000 clients"),
        (["data/partition=shards", "data.partition.shards_per_client=100000"], "shards per client"),
        (["data=folder"], "data=folder"),
        (["rounds=1000000000000"], "rounds"),
        (["hydra.run.dir=/proc/nothing/here"], "hydra.run.dir"),
    ],
)
def test_what_the_run_would_refuse_the_plan_refuses(
    fedsketch_plan: Plan, capsys: pytest.CaptureFixture[str], wrong: list[str], word: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        fedsketch_plan(*wrong)
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line


def test_a_budget_that_the_noise_does_not_keep_is_no_claim(
    fedsketch_plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    """Noise that is given is not found from the budget: all that a run can promise is to end in time."""
    fedsketch_plan("secagg=none", "privacy.against=model", "privacy.noise_multiplier=1", "rounds=4")
    printed = " ".join(capsys.readouterr().out.split())
    assert "Noise multiplier 1; the run ends before it exceeds epsilon 8 at delta" in printed
    assert "above the budget of 8" in printed


def test_noise_from_a_papers_theorem_is_told_apart(
    fedsketch_plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    fedsketch_plan("privacy.accounting=paper", "rounds=2")
    assert " by a paper's theorem; the run ends before" in " ".join(capsys.readouterr().out.split())


def test_a_seeded_plan_is_marked(fedsketch_plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    fedsketch_plan("privacy.randomness=seeded", "rounds=2")
    assert "NOT PRIVATE │ privacy.randomness=seeded" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "wrong",
    [
        "privacy.epsilon=-1",
        "strategy=nothing",
        "model=lenet5",
        "secagg.bits=17",
        "-m",
        "--config-dir",
    ],
)
def test_what_cannot_run_cannot_be_planned(
    fedsketch_plan: Plan, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        fedsketch_plan(wrong, "privacy.epsilon=0.01" if "secagg" in wrong else "rounds=3")
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedsketch: ")
