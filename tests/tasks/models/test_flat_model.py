"""The flat view of a model: live, complete, and equal to plain autograd."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedsketch.conf.plugins import settings_class
from fedsketch.errors import ModelError
from fedsketch.tasks.models import networks
from fedsketch.tasks.models.flat_model import FlatModel

SHAPES = {"logistic": (1, 8, 8), "mlp": (1, 8, 8), "cnn": (1, 8, 8), "lenet5": (1, 12, 12)}
SHAPES |= {"resnet": (3, 8, 8), "transformer": (3, 8, 8)}
OPTIONS = {"mlp": {"width": 32}, "cnn": {"width": 16}, "resnet": {"width": 16, "depth": 8}}
OPTIONS["transformer"] = {"patch": 4, "width": 12, "depth": 2, "heads": 2, "expansion": 2}


def build(name: str, seed: int = 0) -> nn.Module:
    settings = settings_class("model", name)(name=name, **OPTIONS.get(name, {}))
    return networks.build(settings, SHAPES[name], 5, seed)


def batch(name: str, *sizes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    inputs = torch.randn(*sizes, *SHAPES[name], generator=generator)
    return inputs, torch.randint(5, sizes, generator=generator)


def autograd(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss = cross_entropy(module(inputs), targets)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])


def test_flattening_keeps_the_weights() -> None:
    flat = FlatModel(build("cnn"))
    assert torch.equal(flat.vector, nn.utils.parameters_to_vector(build("cnn").parameters()))
    assert flat.size == 10_485


def test_writing_into_the_vector_changes_the_model() -> None:
    flat = FlatModel(build("mlp"))
    inputs, _ = batch("mlp", 4)
    assert float(flat.module(inputs).detach().abs().sum()) > 0
    flat.vector.zero_()
    assert float(flat.module(inputs).detach().abs().sum()) == 0


def test_an_optimiser_on_the_module_moves_the_vector() -> None:
    flat = FlatModel(build("mlp"))
    before = flat.vector.clone()
    optimiser = torch.optim.SGD(flat.module.parameters(), lr=0.5)
    _, gradient = flat.loss_and_gradient(*batch("mlp", 4))
    optimiser.step()
    assert torch.allclose(flat.vector, before - 0.5 * gradient)


def test_layout_says_where_each_parameter_lies() -> None:
    flat = FlatModel(build("mlp"))
    assert [slot.name for slot in flat.layout] == [
        "hidden.weight",
        "hidden.bias",
        "output.weight",
        "output.bias",
    ]
    assert (flat.layout[0].start, flat.layout[-1].stop) == (0, flat.size)
    for slot, parameter in zip(flat.layout, flat.module.parameters(), strict=True):
        piece = flat.vector[slot.start : slot.stop]
        assert torch.equal(piece.view(slot.shape), parameter)
        assert piece.data_ptr() == parameter.data_ptr()


def test_load_copies() -> None:
    flat, other = FlatModel(build("mlp")), FlatModel(build("mlp", seed=1)).vector
    flat.load(other)
    assert torch.equal(flat.vector, other)
    other.zero_()
    assert float(flat.vector.abs().sum()) > 0


def test_load_refuses_a_vector_of_another_model() -> None:
    with pytest.raises(ModelError, match=r"2,245 parameters cannot load .*\(7,\)"):
        FlatModel(build("mlp")).load(torch.zeros(7))


@pytest.mark.parametrize("name", SHAPES)
def test_gradient_equals_autograd(name: str) -> None:
    flat = FlatModel(build(name))
    inputs, targets = batch(name, 6)
    loss, gradient = flat.loss_and_gradient(inputs, targets)
    assert gradient is flat.gradient
    assert torch.allclose(loss, cross_entropy(build(name)(inputs), targets))
    assert torch.allclose(gradient, autograd(build(name), inputs, targets), atol=1e-6)


def test_gradients_do_not_add_up_over_calls() -> None:
    flat = FlatModel(build("mlp"))
    inputs, targets = batch("mlp", 6)
    first = flat.loss_and_gradient(inputs, targets)[1].clone()
    assert torch.equal(flat.loss_and_gradient(inputs, targets)[1], first)


def test_gradient_survives_an_optimiser_that_drops_it() -> None:
    flat = FlatModel(build("mlp"))
    inputs, targets = batch("mlp", 6)
    expected = flat.loss_and_gradient(inputs, targets)[1].clone()
    flat.module.zero_grad(set_to_none=True)
    assert torch.equal(flat.loss_and_gradient(inputs, targets)[1], expected)


def test_zero_grad_zeroes_what_the_module_sees() -> None:
    flat = FlatModel(build("mlp"))
    flat.loss_and_gradient(*batch("mlp", 6))
    flat.zero_grad()
    assert float(flat.gradient.abs().sum()) == 0
    for parameter in flat.module.parameters():
        assert parameter.grad is not None
        assert float(parameter.grad.abs().sum()) == 0


def test_no_examples_have_no_mean_gradient() -> None:
    flat = FlatModel(build("mlp"))
    inputs, targets = batch("mlp", 0)
    with pytest.raises(ModelError, match="empty batch"):
        flat.loss_and_gradient(inputs, targets)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(3),
        nn.BatchNorm2d(3, track_running_stats=False),
        nn.InstanceNorm2d(3, track_running_stats=True),
    ],
)
def test_layers_with_batch_statistics_are_refused_by_name(layer: nn.Module) -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Sequential(nn.ReLU(), layer))
    with pytest.raises(ModelError, match=rf"Layer '1\.1' \({type(layer).__name__}\).*GroupNorm"):
        FlatModel(module)
