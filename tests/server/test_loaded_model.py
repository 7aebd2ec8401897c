"""`fedsketch.load` gives back what was trained, from the folder alone, with all that its inputs went through; exports
compute the same."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedsketch
from fedsketch.conf import Config, compose
from fedsketch.errors import ModelError
from fedsketch.server.export import export, main
from fedsketch.server.loaded_model import LoadedModel
from fedsketch.server.run_folder import RunFolder
from fedsketch.tasks.data.examples import Dataset, Examples
from fedsketch.tasks.models.interface import Interface
from fedsketch.tasks.models.plugin_features import OwnMap
from fedsketch.tasks.workload import Workload
from tests.small import plain

Play = Callable[..., Any]


@pytest.fixture
def finished(no_report: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Workload]:
    """Leaves the folder of a run that has ended with its initial model, and gives its job."""

    def call(folder: Path, *overrides: str, dataset: Dataset | None = None) -> Workload:
        config: Config = compose([*overrides, "device=cpu", "seed=3"])
        if dataset is not None:
            monkeypatch.setattr(
                "fedsketch.tasks.data.datasets.load", lambda settings, seed: dataset
            )
        workload, files = Workload(config), RunFolder(folder)
        files.begin(config)
        files.write_interface(workload.interface)
        files.finish(workload.model(), {})
        return workload

    return call


def test_a_played_run_is_loaded_without_its_data(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("rounds=1", "validation.examples=5")
    played = play(*settings)
    test = Workload(compose(plain(*settings))).test
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    monkeypatch.setattr(
        "fedsketch.tasks.data.datasets.load", lambda *_: pytest.fail("it read data")
    )
    for best in (False, True):
        model = fedsketch.load(tmp_path / "elsewhere", best=best)
        assert not model.training
        assert model.classes == ("0", "1", "2")
        with torch.inference_mode():
            right = model(test.inputs).argmax(1) == test.targets
        assert float(right.float().mean()) == pytest.approx(played.summary["accuracy"])


def _pixels(count: int = 3) -> Dataset:
    """Images on a scale of their own, and their classes by name."""
    inputs = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    examples = Examples(inputs, torch.arange(count) % 2)
    names = ("cat", "dog")
    return Dataset("toy", examples, examples, 2, mean=(0.5,), deviation=(0.25,), class_names=names)


TRANSFORMER = ["model=transformer", "model.patch=3", "model.width=16"]
ADAPTED = ("model.trainable=['output.*']", "model.lora_rank=2")


@pytest.mark.parametrize("overrides", [(), ("model.features=scattering",), ADAPTED], ids=str)
def test_inputs_are_normalised_and_seen_through_features_as_in_training(
    finished: Callable[..., Workload],
    tmp_path: Path,
    overrides: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDSKETCH_CACHE", str(tmp_path / "cache"))
    workload = finished(tmp_path / "run", *overrides, dataset=_pixels())
    model = fedsketch.load(str(tmp_path / "run"))
    raw = 0.25 * workload.dataset.test.inputs + 0.5  # before the data set normalised them
    torch.testing.assert_close(model(raw), workload.model().module(workload.test.inputs))
    assert model.classes == ("cat", "dog")
    assert model.shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("model.safetensors", "has no model.safetensors, because the run has not finished"),
        ("model.json", "does not say what its model is like"),
        ("config.yaml", "does not say what its model is like"),
        ("weights", "does not hold the weights"),
    ],
)
def test_a_folder_without_a_whole_model_is_a_sentence(
    finished: Callable[..., Workload], tmp_path: Path, harm: str, words: str
) -> None:
    finished(tmp_path)
    if harm == "weights":
        (tmp_path / "model.safetensors").write_bytes(b"garbage")
    else:
        (tmp_path / harm).unlink()
    with pytest.raises(ModelError) as caught:
        fedsketch.load(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_without_validation_has_no_best_model(
    finished: Callable[..., Workload], tmp_path: Path
) -> None:
    finished(tmp_path)
    with pytest.raises(ModelError, match="no validation chose a best model"):
        fedsketch.load(tmp_path, best=True)


def test_importing_fedsketch_imports_no_torch() -> None:
    code = (
        "import sys, fedsketch; assert callable(fedsketch.load); sys.exit('torch' in sys.modules or 'flwr' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _same(model: LoadedModel, exported: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """For batches of other sizes than the one that it was traced with, too."""
    for count in (1, 5):
        inputs = torch.rand(count, *model.shape, generator=torch.Generator().manual_seed(count))
        torch.testing.assert_close(exported(inputs), model(inputs), rtol=1e-4, atol=1e-5)


def test_an_export_for_torch_computes_the_same(
    finished: Callable[..., Workload], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished(tmp_path, dataset=_pixels())
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "model.pt2")
    _same(fedsketch.load(tmp_path), torch.export.load(tmp_path / "model.pt2").module())


class _Mixing(torch.nn.Module):
    """Looks at the whole batch, as no feature map should."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs - inputs.mean(0)).flatten(1)


@pytest.mark.slow
@pytest.mark.parametrize("mixing", [False, True])
def test_features_of_ones_own_are_exported_if_they_treat_a_batch_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mixing: bool
) -> None:
    layers = [torch.nn.BatchNorm2d(1), torch.nn.Flatten()]
    module = _Mixing() if mixing else torch.nn.Sequential(*layers).eval()
    features = SimpleNamespace(of=OwnMap("own", module, (64,), ""))
    monkeypatch.setattr("fedsketch.server.loaded_model.feature_map", lambda name, shape: features)
    interface = Interface((1, 8, 8), (64,), "float32", 2, ("cat", "dog"), (0.0,), (1.0,))
    model = LoadedModel(torch.nn.Linear(64, 2), interface, "own").eval()
    if mixing:
        with pytest.raises(ModelError, match="a layer that mixes examples"):
            export(model, "torch", tmp_path / "own.pt2")
    else:
        export(model, "torch", tmp_path / "own.pt2")
        _same(model, torch.export.load(tmp_path / "own.pt2").module())


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [["model=cnn"], TRANSFORMER, ["model.features=scattering"]], ids=str
)
def test_larger_models_and_features_are_exported_for_torch(
    finished: Callable[..., Workload],
    tmp_path: Path,
    overrides: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDSKETCH_CACHE", str(tmp_path / "cache"))
    finished(tmp_path, *overrides, dataset=_pixels())
    assert main([str(tmp_path), "--to", "torch", "-o", str(tmp_path / "own.pt2")]) == 0
    _same(fedsketch.load(tmp_path), torch.export.load(tmp_path / "own.pt2").module())


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [["model=mlp"], ["model=cnn"], TRANSFORMER], ids=str)
def test_an_export_for_onnx_computes_the_same(
    finished: Callable[..., Workload], tmp_path: Path, overrides: list[str]
) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    finished(tmp_path, *overrides, dataset=_pixels())
    assert main([str(tmp_path), "--to", "onnx"]) == 0
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))

    def exported(inputs: torch.Tensor) -> torch.Tensor:
        (outputs,) = session.run(["outputs"], {"inputs": inputs.numpy()})
        return torch.from_numpy(outputs)

    _same(fedsketch.load(tmp_path), exported)


@pytest.mark.slow
def test_what_onnx_cannot_say_is_a_sentence(
    finished: Callable[..., Workload],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scattering is made of complex numbers."""
    pytest.importorskip("onnxscript")
    monkeypatch.setenv("FEDSKETCH_CACHE", str(tmp_path / "cache"))
    finished(tmp_path, "model.features=scattering", dataset=_pixels())
    assert main([str(tmp_path), "--to", "onnx"]) == 1
    assert "export it with --to torch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere has no model.safetensors"),
        (["nowhere", "--to", "onnx"], "pip install 'fedsketch[onnx]'"),
        (["nowhere", "--to", "paper"], "see fedsketch-export --help"),
        ([], "see fedsketch-export --help"),
    ],
)
def test_what_cannot_be_exported_is_a_sentence(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedsketch.server.export.find_spec", lambda package: None)
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.count("\n") == 1


def test_what_the_model_takes_and_gives_is_written_for_other_programs(
    finished: Callable[..., Workload], tmp_path: Path
) -> None:
    finished(tmp_path, dataset=_pixels())
    assert json.loads((tmp_path / "model.json").read_text()) == {
        "shape": [1, 8, 8],
        "network_shape": [1, 8, 8],
        "inputs": "float32",
        "outputs": 2,
        "classes": ["cat", "dog"],
        "mean": [0.5],
        "deviation": [0.25],
    }


@pytest.mark.parametrize("part", [["model.trainable=['output.*']"], ["model.lora_rank=2"]])
def test_models_with_a_frozen_part_are_loaded_as_plain_ones(
    finished: Callable[..., Workload], tmp_path: Path, part: list[str]
) -> None:
    workload = finished(tmp_path, "model=mlp", *part)
    inputs = workload.test.inputs[:5]
    with torch.inference_mode():
        expected = workload.model().module(inputs)
        found = fedsketch.load(tmp_path)
        torch.testing.assert_close(found.module(inputs), expected)
    assert set(found.module.state_dict()) == {
        f"{a}.{b}" for a in ("hidden", "output") for b in ("weight", "bias")
    }
