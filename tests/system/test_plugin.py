"""A strategy, a model, a feature map, a data set and a tracker of an installed package outside the tree, in both kinds of runtime."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml

ROOT = Path(__file__).parents[2]
CLI = "from fedsketch.runtime.cli import main; main()"
TOY = ["strategy=toy", "strategy.factor=0.25", "model=toy", "data=toy", "tracking=toy"]
TOY += ["model.features=toy"]
SMALL = ["rounds=2", "clients.total=3", "clients.per_round=3", "device=cpu"]
Start = Callable[..., subprocess.Popen[str]]
Call = Callable[..., str]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip installed tests/system/toy_plugin, from a copy, because building leaves files behind."""
    folder = tmp_path_factory.mktemp("toy")
    shutil.copytree(Path(__file__).parent / "toy_plugin", folder / "sources")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, *alone, "--target", folder / "site", folder / "sources"], check=True)
    return folder / "site"


@pytest.fixture
def call(start: Start, installed: Path) -> Call:
    """The command in a process that finds the installed package; returns what it printed."""

    def run(*arguments: str) -> str:
        path = os.pathsep.join([str(installed), str(ROOT)])
        process = start("-c", CLI, *arguments, PYTHONPATH=path)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        return output

    return run


def test_it_runs_here_and_under_ray_with_the_same_result(call: Call, tmp_path: Path) -> None:
    models = []
    for runtime in ("local", "simulation"):
        run = [*TOY, *SMALL, "privacy.randomness=seeded", f"runtime={runtime}"]
        assert "toy on toy (toy)" in call(*run, f"hydra.run.dir={runtime}")
        folder = tmp_path / runtime
        config = yaml.safe_load((folder / "config.yaml").read_text())
        assert (config["strategy"]["name"], config["strategy"]["factor"]) == ("toy", 0.25)
        events = (folder / "tracked.txt").read_text().splitlines()
        assert events == ["began toy 0", "played 1", "played 2", "ended 2"]
        models.append(safetensors.torch.load_file(folder / "model.safetensors"))
    assert "Resuming after round 2." in call("resume=local", "strategy.factor=0.25")
    assert models[0]["1.weight"].shape == (4, 1, 1)
    for name, tensor in models[0].items():
        # Sums of integers are exact, and floating-point ones of three clients come in another order: a few units in the last place.
        torch.testing.assert_close(models[1][name], tensor, rtol=1e-4, atol=1e-5)


def test_hydras_own_options_find_it(call: Call) -> None:
    assert "factor: 0.25" in call("--cfg", "job", *TOY)
