"""`local` and `simulation` are the same run: same seed, same model up to the order of floating-point sums."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

SETTINGS = [
    "rounds=3",
    "device=cpu",
    "seed=3",
    "clients.total=5",
    "clients.per_round=3",
    "clients.sampling=poisson",
    "strategy.broadcast=full",  # with replay, processes that meet a version first ask for it
    "strategy.local.steps=3",
    "strategy.local.batch=8",
    "secagg=none",
    "privacy.randomness=seeded",
    "privacy.against=model",
    "privacy.noise_multiplier=0.25",
    "privacy.epsilon=null",
    "privacy.clip=adaptive",
    "evaluation=federated",
    "evaluation.clients=4",
]
Command = Callable[..., None]
Start = Callable[..., subprocess.Popen[str]]


@pytest.mark.xdist_group("processes")
def test_the_same_seed_gives_the_same_model(
    fedsketch: Command, start: Start, tmp_path: Path
) -> None:
    cli = "from fedsketch.runtime.cli import main; main()"
    ray = start("-c", cli, *SETTINGS, "runtime=simulation", "hydra.run.dir=simulation")
    fedsketch(*SETTINGS, "hydra.run.dir=local")
    output, _ = ray.communicate(timeout=300)
    assert ray.returncode == 0, output

    models, rows = [], []
    for name in ("local", "simulation"):
        models.append(safetensors.torch.load_file(tmp_path / name / "model.safetensors"))
        metrics = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        rows.append([json.loads(line) for line in metrics])
    assert models[0].keys() == models[1].keys()
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor, rtol=1e-4, atol=1e-5)
    assert len(rows[0]) == 3
    assert rows[0][-1]["federated_loss"] is not None
    for mine, theirs in zip(*rows, strict=True):
        for key in ("clients", "dropped", "epsilon"):
            assert mine[key] == theirs[key]
        assert mine["clip"] == pytest.approx(theirs["clip"], rel=1e-4)
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        if mine["federated_loss"] is not None:
            assert mine["federated_loss"] == pytest.approx(theirs["federated_loss"], rel=1e-3)
        # Only node ids and message ids may be longer or shorter there.
        for key in ("uplink_bytes", "downlink_bytes"):
            assert mine[key] == pytest.approx(theirs[key], rel=0.02)
