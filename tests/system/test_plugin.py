"""A model, a feature map, a data set and a tracker of a package outside the tree, really installed. More packages:
`test_examples`."""

from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import yaml

from tests.small import small

TOY = ["strategy=dp_fedavg", "model=toy", "model.width=5", "data=toy", "tracking=toy"]
TOY += ["model.features=toy"]
SMALL = small(*TOY, "rounds=2", clients=3)


@pytest.fixture(scope="module")
def site(pip_install: Callable[..., Path]) -> Path:
    return pip_install("tests/system/toy_plugin")


def test_it_runs_and_goes_on(
    site: Path, found_here: Callable[[Path], None], play: Callable[..., int], tmp_path: Path
) -> None:
    found_here(site)
    (tmp_path / "run").mkdir()  # as the command does, before a tracker is made
    play("run", *SMALL, stop_after=1)
    assert play("run", *SMALL) == 1
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["model"]["name"], config["model"]["width"]) == ("toy", 5)
    events = (tmp_path / "run" / "tracked.txt").read_text().splitlines()
    assert events == ["began dp_fedavg 0", "played 1", "began dp_fedavg 1", "played 2", "ended 2"]
    model = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert model["1.weight"].shape == (5, 1, 1)


def test_hydras_own_options_find_it(site: Path, call_with: Callable[..., str]) -> None:
    assert "width: 5" in call_with(site, "--cfg", "job", *TOY)
