"""Models: sizes, fit to the data, and weights that depend on the seed alone."""

import pytest
import torch
from torch import nn

from fedsketch.tasks import models
from fedsketch.tasks.errors import ModelError

DIGITS, MNIST, CIFAR = (1, 8, 8), (1, 28, 28), (3, 32, 32)
Shape = tuple[int, int, int]


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "options", "parameters"),
    [
        ("logistic", MNIST, {}, 7_850),
        ("mlp", MNIST, {"width": 32}, 25_450),
        ("mlp", MNIST, {"width": 256}, 203_530),
        ("mlp", DIGITS, {}, 2_410),
        ("cnn", MNIST, {}, 26_010),
        ("cnn", DIGITS, {}, 10_650),
        ("cnn", CIFAR, {}, 37_274),
        ("lenet5", MNIST, {}, 61_706),
        ("lenet5", CIFAR, {}, 62_006),
        ("resnet", CIFAR, {}, 78_042),
        ("resnet", CIFAR, {"depth": 20}, 272_474),
    ],
)
def test_number_of_parameters(
    name: str, shape: Shape, options: dict[str, int], parameters: int
) -> None:
    module = models.build(name, input_shape=shape, classes=10, seed=0, **options)
    assert size(module) == parameters


@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize("shape", [DIGITS, (1, 13, 20), MNIST, CIFAR, (2, 50, 33)])
def test_every_fitting_model_learns_on_every_shape(name: str, shape: Shape) -> None:
    if (name, shape) == ("lenet5", DIGITS):
        with pytest.raises(ModelError):
            models.build(name, input_shape=shape, classes=7, seed=0)
        return
    module = models.build(name, input_shape=shape, classes=7, seed=0)
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(3, *shape, generator=generator), torch.tensor([0, 3, 6])
    logits = module(inputs)
    assert logits.shape == (3, 7)
    nn.functional.cross_entropy(logits, targets).backward()
    for name_, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all()), name_
        assert float(parameter.grad.abs().sum()) > 0, name_


@pytest.mark.parametrize("name", models.NAMES)
def test_the_seed_alone_decides_the_weights(name: str) -> None:
    state = torch.get_rng_state()
    one, same, other = (
        nn.utils.parameters_to_vector(
            models.build(name, input_shape=MNIST, classes=10, seed=seed).parameters()
        )
        for seed in (3, 3, 4)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", models.NAMES)
def test_weights_start_at_the_scale_of_torchs_own_default(name: str) -> None:
    """Uniform within 1 / sqrt(fan-in), so a tensor of n weights comes within 10 % of the bound
    unless n draws all miss its outer tenth: 0.9^n, below 1e-4 for the 90 weights or more checked."""
    module = models.build(name, input_shape=MNIST, classes=10, seed=0)
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.weight.numel() >= 90:
            bound = layer.weight[0].numel() ** -0.5
            assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound
        if isinstance(layer, nn.GroupNorm):
            assert bool((layer.weight == 1).all() and (layer.bias == 0).all())


@pytest.mark.parametrize("width", [1, 6, 16])
def test_width_is_free_where_a_model_has_one(width: int) -> None:
    for name in ("mlp", "cnn", "resnet"):
        module = models.build(name, input_shape=DIGITS, classes=10, seed=0, width=width)
        assert module(torch.zeros(2, *DIGITS)).shape == (2, 10)


def test_model_too_large_for_the_images_names_shape_and_choices() -> None:
    with pytest.raises(ModelError) as caught:
        models.build("lenet5", input_shape=DIGITS, classes=10, seed=0)
    assert str(caught.value) == (
        "Model lenet5 needs images of at least 12 x 12, but the data has 1 x 8 x 8 "
        "(channels x height x width): choose one of logistic, mlp, cnn, resnet."
    )


@pytest.mark.parametrize(("name", "side"), [("cnn", 8), ("lenet5", 12), ("resnet", 8)])
def test_the_smallest_image_named_is_the_smallest_that_works(name: str, side: int) -> None:
    module = models.build(name, input_shape=(1, side, side), classes=10, seed=0)
    assert module(torch.zeros(1, 1, side, side)).shape == (1, 10)
    with pytest.raises(ModelError, match=f"at least {side} x {side}"):
        models.build(name, input_shape=(1, side + 5, side - 1), classes=10, seed=0)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ModelError, match=r"no model 'mpl': choose one of logistic, mlp"):
        models.build("mpl", input_shape=DIGITS, classes=10, seed=0)
    with pytest.raises(ModelError, match="logistic has no width"):
        models.build("logistic", input_shape=DIGITS, classes=10, seed=0, width=3)
    with pytest.raises(ModelError, match="mlp has no depth"):
        models.build("mlp", input_shape=DIGITS, classes=10, seed=0, depth=8)
    with pytest.raises(ModelError, match="width of at least 1, got 0"):
        models.build("mlp", input_shape=DIGITS, classes=10, seed=0, width=0)
    with pytest.raises(ModelError, match="no depth 18: choose 8, 14, 20"):
        models.build("resnet", input_shape=CIFAR, classes=10, seed=0, depth=18)
    with pytest.raises(ModelError, match="at least 2 classes"):
        models.build("mlp", input_shape=DIGITS, classes=1, seed=0)
    with pytest.raises(ModelError, match="channels x height x width"):
        models.build("mlp", input_shape=(1, 0, 8), classes=2, seed=0)
