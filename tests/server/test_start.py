"""Whole runs that start from what exists: features that nobody trains, weights of a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from safetensors.torch import load_file, save_file

from fedsketch.client.app import app as client_app
from fedsketch.conf import compose
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.strategies.registry import make_strategy
from fedsketch.tasks.workload import Workload
from tests.rounds import coordinator_of
from tests.small import plain

Play = Callable[..., Any]
SEEDED = ("rounds=2", "privacy.randomness=seeded")


def test_all_of_a_run_sees_features(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSKETCH_CACHE", str(tmp_path / "cache"))
    played = play("data.shape=[1,8,8]", "model.features=scattering", "rounds=1")
    assert played.rows[0]["clients"] == 6
    assert played.summary["parameters"] == 3 * (81 * 2 * 2 + 1)
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(kept) == 80  # of clients and of the test set, each once


@pytest.mark.parametrize("broadcast", ["full", "replay"])
def test_devices_train_from_given_weights(broadcast: str, play: Play, tmp_path: Path) -> None:
    """With learning rate nearly 0 the run ends where the file began, whoever had to be told; a device that started from
    the seed instead would have another state, and be refused."""
    given = {"output.weight": torch.randn(3, 6), "output.bias": torch.randn(3)}
    save_file(given, tmp_path / "given.safetensors")
    played = play(
        *SEEDED,
        "strategy=dome",
        f"strategy.broadcast={broadcast}",
        "strategy.server.lr=1e-9",
        f"model.weights={tmp_path / 'given.safetensors'}",
    )
    assert [(row["clients"], row["dropped"]) for row in played.rows] == [(6, 0), (6, 0)]
    ended = load_file(tmp_path / "run" / "model.safetensors")
    for name, tensor in given.items():
        torch.testing.assert_close(ended[name], tensor, rtol=0, atol=1e-5)


def test_the_result_of_flowers_start_fits_the_module() -> None:
    """`result.arrays` has the names of the state dict, as in every app of Flower's."""
    config = compose(plain("rounds=2"))
    workload = Workload(config)
    strategy = make_strategy(config, workload, workload.model())
    other = workload.model().module
    with simulated_devices(config):
        grid = LocalGrid(client_app, config.clients.total)
        first = {name: torch.full_like(x, 0.5) for name, x in other.state_dict().items()}
        result = coordinator_of(strategy).start(grid, ArrayRecord(first), num_rounds=2)
    ended = result.arrays.to_torch_state_dict()
    other.load_state_dict(ended)
    for name, tensor in strategy.model.module.state_dict().items():
        assert torch.equal(ended[name], tensor)
        assert not torch.equal(ended[name], first[name])
        assert (ended[name] - first[name]).norm() < 10  # it started from what Flower brought
