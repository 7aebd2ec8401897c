"""`pip install ./secagg` alone: the example learns with Flower's strategies and one's own, without torch and without
the rest of fedsketch."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "secagg_fedavg" / "app.py"
# What learns, in a process that finds the installed package only.
PLAY = """
import importlib.util, sys
import numpy as np
from flwr.app import Context, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg

class Halving(FedAvg):
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return arrays, metrics

spec = importlib.util.spec_from_file_location("example", sys.argv[1])
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
sys.path.append(sys.argv[2])
from in_process_grid import InProcessGrid, begin

begin()
adam = FedAdam(fraction_evaluate=0.0, eta=0.5, beta_1=0.5, beta_2=0.9, tau=0.1)
for name, strategy, rounds in (
    ("FedAvg", None, 6), ("own", Halving(fraction_evaluate=0.0), 6), ("FedAdam", adam, 25)
):
    grid = InProcessGrid(example.app, range(100, 110))
    learned = example.learn(grid, rounds, strategy).arrays.to_numpy_ndarrays()[0]
    print(name, float(np.abs(learned - example.TRUTH).max()))
print(*sorted({module.split(".")[0] for module in sys.modules} & {"torch", "fedsketch", "secagg"}))
"""


def test_the_example_learns_on_the_package_alone(pip_install: Callable[..., Path]) -> None:
    site = pip_install("secagg")
    done = _python(site, "-c", PLAY, str(EXAMPLE), str(ROOT / "tests" / "secagg"))
    *learned, imported = done.splitlines()
    errors = dict(line.split() for line in learned if not line.startswith("INFO"))
    assert errors.keys() == {"FedAvg", "own", "FedAdam"}
    assert all(float(error) < 0.05 for error in errors.values()), errors
    assert imported == "secagg"


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_the_example_runs_as_its_page_says(pip_install: Callable[..., Path]) -> None:
    """On simulated nodes of Flower, each in a process of Ray."""
    told = re.search(r"learned \[(.*)\] truth", _python(pip_install("secagg"), str(EXAMPLE)))
    assert told is not None
    assert [float(weight) for weight in told[1].split()] == pytest.approx([2, -3, 0.5], abs=0.05)


def test_every_package_below_is_part_of_it() -> None:
    settings = tomllib.loads((ROOT / "secagg" / "pyproject.toml").read_text())
    folders = {path.parent for path in (ROOT / "secagg").rglob("__init__.py")}
    named = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(settings["tool"]["setuptools"]["packages"]) == named


def _python(site: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=site,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
