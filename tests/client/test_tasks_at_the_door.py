"""Tasks of installed packages on real devices: the owner decides which may run, and one that breaks tells nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsketch.client.guard.card import DataCard
from fedsketch.conf.targets import Targets
from fedsketch.strategies.rounds.evaluation import FederatedEvaluation
from tests.client.fleet import NODES, POLICY, Fleet, npz, same

OWN_SETTINGS = """
from typing import ClassVar
from fedsketch.conf.settings import TaskSettings
from fedsketch.conf.targets import Targets

class Own(TaskSettings):
    targets: ClassVar = Targets.KIND
    metrics: ClassVar = ()

SETTINGS = Own
"""
OWN_TASK = """
import os
from fedsketch.tasks.task import Task
from torch.nn.functional import cross_entropy

open(os.environ["OWN_TASK_IMPORTED"], "a").close()

class Own(Task):
    def losses(self, outputs, targets):
        return LOSSES
"""
USUAL = "cross_entropy(outputs, targets, reduction='none')"


@pytest.fixture
def own_task(install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a package with the task `own`, whose losses are the given expression; returns the file that tells that
    it was imported."""

    def call(losses: str = USUAL, kind: Targets = Targets.CLASSES) -> Path:
        files = {
            "__init__.py": "",
            "task/own.yaml": "name: own",
            "task/own.py": OWN_SETTINGS.replace("KIND", kind.name),
            "code.py": OWN_TASK.replace("LOSSES", losses),
        }
        entries = {
            "fedsketch.conf": "x = plugin_own",
            "fedsketch.tasks": "own = plugin_own.code:Own",
        }
        install("plugin_own", files, entries)
        imported = tmp_path / "imported"
        monkeypatch.setenv("OWN_TASK_IMPORTED", str(imported))
        return imported

    return call


@pytest.mark.parametrize("allowed", [True, False])
def test_a_task_that_is_installed_runs_only_where_the_owner_allows_it(
    worlds: Any, tmp_path: Path, own_task: Any, allowed: bool
) -> None:
    """Without: refused in the same words whatever the data, nothing charged, and the task's code is not imported."""
    imported = own_task()
    policy = replace(POLICY, plugins="other, own" if allowed else "other")

    def attack(fleet: Fleet) -> str:
        return fleet.play(torch.zeros(fleet.strategy.model.size), task={"name": "own"})

    low, nothing = npz(tmp_path / "low.npz", 0.1), tmp_path / "nothing.npz"
    told = worlds(attack, low, nothing, policy=policy)
    same(told)
    assert imported.exists() is allowed
    charged = [line for ledger in told[0][2] for line in ledger if line["entry"] == "charged"]
    if allowed:
        assert told[0][0] == "a sum"
        assert len(charged) == NODES
    else:
        assert "This device's owner does not allow the task of an installed package" in told[0][0]
        assert charged == []


def test_a_task_that_is_not_installed_is_refused_without_a_list_of_what_is(
    worlds: Any, tmp_path: Path, own_task: Any
) -> None:
    imported = own_task()

    def attack(fleet: Fleet) -> str:
        return fleet.play(torch.zeros(fleet.strategy.model.size), task={"name": "os"})

    told = worlds(attack, npz(tmp_path / "low.npz", 0.1), tmp_path / "nothing.npz")
    same(told)
    assert "The message is not one that this device can train on" in told[0][0]
    assert "own" not in told[0][0].replace("known", "")
    assert not imported.exists()


@pytest.mark.parametrize(
    ("unit", "losses"),
    [
        ("client", f"{USUAL} / 0"),
        ("client", "outputs"),
        ("client", f"{USUAL} if targets.sum() > 0 else 1 / 0"),
        ("example", f"float('nan') * {USUAL}"),
        ("example", f"{USUAL}.mean()"),
    ],
)
def test_a_task_that_breaks_looks_like_any_other(
    worlds: Any,
    tmp_path: Path,
    own_task: Any,
    losses: str,
    unit: str,
) -> None:
    """Losses that are no numbers, of another shape, or that raise for some data: a sum of noise, charged as every
    other."""
    own_task(losses)
    policy = replace(POLICY, plugins="own", unit=unit)

    def attack(fleet: Fleet) -> str:
        return fleet.play(torch.zeros(fleet.strategy.model.size), task={"name": "own"})

    run = (f"privacy={unit}", "data.largest_shard=5", "privacy.epsilon=null")
    good, none = npz(tmp_path / "good.npz", 0.5), tmp_path / "nothing.npz"
    told = worlds(attack, good, none, *run, "privacy.noise_multiplier=1", policy=policy)
    same(told)
    assert told[0][0] == "a sum"
    charged = [line for ledger in told[0][2] for line in ledger if line["entry"] == "charged"]
    assert len(charged) == NODES


def test_what_a_task_says_of_a_record_is_not_in_the_log(
    worlds: Any, tmp_path: Path, own_task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The text of an exception may hold a record."""
    own_task(f"int('Meier Hans') if bool((targets == 1).any()) else {USUAL}")
    policy = replace(POLICY, plugins="own", unit="example")

    def attack(fleet: Fleet) -> str:
        fleet.strategy = FederatedEvaluation(fleet.strategy)  # type: ignore[assignment]
        return fleet.play(torch.zeros(fleet.strategy.model.size), task={"name": "own"})

    run = ("privacy=example", "data.largest_shard=5", "privacy.epsilon=null")
    run += ("evaluation=federated", "evaluation.groups=1", "evaluation.epsilon=20")
    good, bad = npz(tmp_path / "good.npz", 0.5), tmp_path / "bad.npz"
    np.savez(bad, inputs=np.zeros((4, 1, 2, 2), np.float32), targets=[0, 1, 1, 1])
    run += ("evaluation.held_out=0.9", "privacy.noise_multiplier=1")
    with caplog.at_level("WARNING"):
        same(worlds(attack, good, bad, *run, policy=policy))
    assert "(ValueError)" in caplog.text
    assert "Meier" not in caplog.text


def test_a_device_learns_numbers_from_its_own_table_by_an_installed_task(
    worlds: Any, tmp_path: Path, own_task: Any
) -> None:
    """Rows of three numbers and a number to predict, which the card says; a run for classes is refused by the same
    card."""
    own_task("(outputs.squeeze(1) - targets).square()", Targets.NUMBERS)
    card = DataCard("folder", (3,), ("visits",), 4, Targets.NUMBERS.value)
    policy = replace(POLICY, plugins="own")
    tables = [tmp_path / "low.npz", tmp_path / "high.npz"]
    for path, value in zip(tables, (0.0, 1.0), strict=True):
        inputs = np.full((3, 3), value, np.float32)
        np.savez(path, inputs=inputs, targets=np.arange(3, dtype=np.float32))

    def attack(fleet: Fleet) -> list[str]:
        start = torch.zeros(fleet.strategy.model.size)
        classes = {"name": "classification"}, {"classes": ["a", "b"]}
        return [fleet.play(start), fleet.play(start, 2, task=classes[0], data=classes[1])]

    keys = ("task=own", "data.shape=[3]", "data.classes=[visits]")
    told = worlds(attack, *tables, *keys, card=card, policy=policy)
    same(told)
    assert told[0][0][0] == "a sum"
    assert "data of another kind than the data card" in told[0][0][1]
