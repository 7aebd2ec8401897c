"""Starting from the weights of a file."""

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedsketch.conf import Config, compose, device_json, from_json
from fedsketch.errors import ModelError
from fedsketch.tasks.workload import Workload
from tests.small import small

SHAPES = {
    "hidden.weight": (4, 6),
    "hidden.bias": (4,),
    "output.weight": (3, 4),
    "output.bias": (3,),
}


def _config(*overrides: str) -> Config:
    return compose(small("model=mlp model.width=4", *overrides))


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def _started(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    save_file(tensors, tmp_path / "given.safetensors")
    model = Workload(_config(f"model.weights={tmp_path / 'given.safetensors'}")).model()
    return {
        slot.name: model.vector[slot.start : slot.stop].view(slot.shape) for slot in model.layout
    }


def test_a_model_starts_from_the_file(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    started = _started(tmp_path, tensors)
    assert started.keys() == tensors.keys()
    assert all(torch.equal(started[name], tensors[name]) for name in tensors)


def test_what_the_file_lacks_starts_from_the_seed_and_the_log_names_it(
    tmp_path: Path, tensors: dict[str, torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    without_head = {name: tensors[name] for name in tensors if name.startswith("hidden")}
    with caplog.at_level(logging.WARNING):
        started = _started(tmp_path, without_head)
    assert "output.weight, output.bias" in caplog.text
    plain = Workload(_config()).model().module.state_dict()
    assert torch.equal(started["hidden.bias"], tensors["hidden.bias"])
    assert torch.equal(started["output.weight"], plain["output.weight"])


@pytest.mark.parametrize(
    ("name", "tensor", "sentence"),
    [
        (
            "output.weight",
            torch.zeros(4, 3),
            r"'output.weight' of shape \(4, 3\).*expects \(3, 4\)",
        ),
        ("module.output.bias", torch.zeros(3), r"'module.output.bias'.*none of that name"),
        ("output.bias", torch.tensor([0.0, torch.inf, 0.0]), r"not finite floats"),
        ("output.bias", torch.zeros(3, dtype=torch.int64), r"not finite floats"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(
    name: str, tensor: torch.Tensor, sentence: str, tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(ModelError, match=sentence):
        _started(tmp_path, {**tensors, name: tensor})


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing.safetensors"
    with pytest.raises(ModelError, match=r"cannot be read.*on the server"):
        Workload(_config(f"model.weights={missing}")).model()
    missing.write_bytes(b"this is not a file of tensors")
    with pytest.raises(ModelError, match=r"cannot be read.*on the server"):
        Workload(_config(f"model.weights={missing}")).model()
    with pytest.raises(ModelError, match="holds no tensor"):
        _started(tmp_path, {})


def test_devices_are_not_told_the_path() -> None:
    config = _config("model.weights=/home/somebody/given.safetensors")
    sent = device_json(config)
    assert "somebody" not in sent
    assert from_json(sent).model == _config().model
