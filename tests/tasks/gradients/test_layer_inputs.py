"""The rows that a layer's folded weight multiplies: for linear layers and convolutions, of a model of ours and of
others."""

import pytest
import torch
from torch import nn

from fedsketch.conf import compose
from fedsketch.errors import ModelError
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.gradients.layer_inputs import CHUNK, layer_inputs
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Workload


def _examples(count: int, *shape: int) -> Examples:
    inputs = torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))
    return Examples(inputs, torch.zeros(count, dtype=torch.int64))


def _all(model: FlatModel, examples: Examples, *names: str) -> dict[str, torch.Tensor]:
    parts = list(layer_inputs(model, examples, names))
    assert len(parts) == -(-len(examples) // CHUNK)
    return {name: torch.cat([part[name] for part in parts]) for name in names}


@pytest.mark.parametrize("count", [3, CHUNK + 2])
def test_the_first_layer_sees_the_images(count: int) -> None:
    examples = _examples(count, 1, 8, 8)
    seen = _all(Workload(compose(["model=mlp", "device=cpu"])).model(), examples, "hidden.weight")
    assert torch.equal(seen["hidden.weight"], examples.inputs.flatten(1))


TRANSFORMER = "transformer model.patch=3 model.width=8 model.depth=2 model.bias=true"


@pytest.mark.parametrize("model", ["mlp", "cnn", "logistic", TRANSFORMER])
def test_weights_times_their_inputs_are_what_the_layers_make(model: str) -> None:
    flat = Workload(compose([*f"model={model}".split(), "device=cpu"])).model()
    examples = _examples(5, 1, 8, 8)
    weights = [slot.name for slot in flat.layout if len(slot.shape) > 1]
    made: dict[str, torch.Tensor] = {}
    for name in weights:

        def keep(layer: nn.Module, _: object, output: torch.Tensor, name: str = name) -> None:
            made[name] = output

        flat.module.get_submodule(name.removesuffix(".weight")).register_forward_hook(keep)
    for name, rows in _all(flat, examples, *weights).items():
        layer = flat.module.get_submodule(name.removesuffix(".weight"))
        expected = made[name]
        if expected.ndim == 4:  # channels come before the places of an image
            expected = expected.flatten(2).transpose(1, 2)
        expected = expected.flatten(0, -2) - layer.bias  # type: ignore[operator]
        product = rows @ layer.weight.flatten(1).T  # type: ignore[union-attr, operator]
        torch.testing.assert_close(product, expected, rtol=1e-4, atol=1e-5)


def test_watching_leaves_no_trace() -> None:
    model = Workload(compose(["model=mlp", "device=cpu"])).model()
    _all(model, _examples(2, 1, 8, 8), "hidden.weight")
    assert not any(layer._forward_pre_hooks for layer in model.module.modules())


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 2, 3, padding_mode="circular"), nn.PReLU(2)],
)
def test_a_layer_whose_inputs_are_unknown_is_named(layer: nn.Module) -> None:
    model = FlatModel(nn.Sequential(layer, nn.Flatten()))
    with pytest.raises(ModelError, match=r"'0\.weight' .* set strategy\.directions=learned"):
        list(layer_inputs(model, _examples(1, 2, 5, 5), ["0.weight"]))
