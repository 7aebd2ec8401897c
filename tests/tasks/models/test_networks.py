"""Models: sizes, fit to the data, and weights that depend on the seed alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fedsketch.conf import compose
from fedsketch.conf.plugins import built_in
from fedsketch.errors import ConfigError, ModelError
from fedsketch.tasks.models import networks
from fedsketch.tasks.models.initialisation import initialise

DIGITS, MNIST, CIFAR = (1, 8, 8), (1, 28, 28), (3, 32, 32)
Shape = tuple[int, int, int]
Build = Callable[..., nn.Module]


@pytest.fixture
def build(choose: Callable[..., Any]) -> Build:
    def call(
        name: str, shape: Shape, classes: int = 10, seed: int = 0, **options: int
    ) -> nn.Module:
        return networks.build(choose("model", name, **options), shape, classes, seed)

    return call


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "options", "parameters"),
    [
        ("logistic", MNIST, {}, 7_850),
        ("mlp", MNIST, {"width": 32}, 25_450),
        ("mlp", MNIST, {"width": 256}, 203_530),
        ("mlp", DIGITS, {}, 2_410),
        ("mlp", (30,), {"width": (64, 32)}, 31 * 64 + 65 * 32 + 33 * 10),
        ("mlp", MNIST, {"width": 64, "bias": False}, 784 * 64 + 64 * 10),
        ("cnn", MNIST, {}, 26_010),
        ("cnn", DIGITS, {}, 10_650),
        ("cnn", CIFAR, {}, 37_274),
        ("lenet5", MNIST, {}, 61_706),
        ("lenet5", CIFAR, {}, 62_006),
        ("resnet", CIFAR, {}, 78_042),
        ("resnet", CIFAR, {"depth": 20}, 272_474),
        ("transformer", MNIST, {}, 1_006_128),
        ("transformer", CIFAR, {"patch": 4}, 4 * 12 * 144**2 + (3 * 16 + 64) * 144 + 1_440),
        (
            "transformer",
            DIGITS,
            {"patch": 4, "width": 8, "depth": 1, "bias": True},
            768 + 168 + 90 + 72,
        ),
    ],
)
def test_number_of_parameters(
    name: str, shape: Shape, options: dict[str, int], parameters: int, build: Build
) -> None:
    module = build(name, shape, **options)
    assert size(module) == parameters


@pytest.mark.parametrize("name", built_in("model"))
@pytest.mark.parametrize("shape", [DIGITS, (1, 13, 20), MNIST, CIFAR, (2, 50, 33)])
def test_every_fitting_model_learns_on_every_shape(name: str, shape: Shape, build: Build) -> None:
    if (name, shape) == ("lenet5", DIGITS):
        with pytest.raises(ModelError):
            build(name, shape, classes=7)
        return
    module = build(name, shape, classes=7)
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(3, *shape, generator=generator), torch.tensor([0, 3, 6])
    logits = module(inputs)
    assert logits.shape == (3, 7)
    nn.functional.cross_entropy(logits, targets).backward()
    for name_, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all()), name_
        assert float(parameter.grad.abs().sum()) > 0, name_


@pytest.mark.parametrize("name", built_in("model"))
def test_the_seed_alone_decides_the_weights(name: str, build: Build) -> None:
    state = torch.get_rng_state()
    one, same, other = (
        nn.utils.parameters_to_vector(build(name, MNIST, seed=seed).parameters())
        for seed in (3, 3, 4)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", built_in("model"))
def test_weights_start_at_the_scale_of_torchs_own_default(name: str, build: Build) -> None:
    """Uniform within 1 / sqrt(fan-in), so a tensor of n weights comes within 10 % of the bound
    unless n draws all miss its outer tenth: 0.9^n, below 1e-4 for the 90 weights or more checked."""
    module = build(name, MNIST)
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.weight.numel() >= 90:
            bound = layer.weight[0].numel() ** -0.5
            assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound
        if isinstance(layer, nn.GroupNorm):
            assert bool((layer.weight == 1).all() and (layer.bias == 0).all())


@pytest.mark.parametrize("width", [1, 6, 16])
def test_width_is_free_where_a_model_has_one(width: int, build: Build) -> None:
    for name in ("mlp", "cnn", "resnet"):
        module = build(name, DIGITS, width=width)
        assert module(torch.zeros(2, *DIGITS)).shape == (2, 10)


def test_model_too_large_for_the_images_names_shape_and_choices(build: Build) -> None:
    with pytest.raises(ModelError) as caught:
        build("lenet5", DIGITS)
    assert str(caught.value) == (
        "Model lenet5 needs images of at least 12 x 12, but the data has 1 x 8 x 8 "
        "(channels x height x width): choose one of logistic, mlp, cnn, resnet, transformer."
    )


@pytest.mark.parametrize(("name", "side"), [("cnn", 8), ("lenet5", 12), ("resnet", 8)])
def test_the_smallest_image_named_is_the_smallest_that_works(
    name: str, side: int, build: Build
) -> None:
    module = build(name, (1, side, side))
    assert module(torch.zeros(1, 1, side, side)).shape == (1, 10)
    with pytest.raises(ModelError, match=f"at least {side} x {side}"):
        build(name, (1, side + 5, side - 1))


def test_impossible_data_are_refused(build: Build) -> None:
    with pytest.raises(ModelError, match="at least one output"):
        build("mlp", DIGITS, classes=0)
    with pytest.raises(ModelError, match="at least one number"):
        build("mlp", (1, 0, 8), classes=2)


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_vectors_have_models_too(name: str, build: Build) -> None:
    assert build(name, (30,), classes=1)(torch.zeros(5, 30)).shape == (5, 1)


@pytest.mark.parametrize("name", ["cnn", "lenet5", "resnet", "transformer"])
def test_image_models_say_what_to_take_for_vectors(name: str, build: Build) -> None:
    with pytest.raises(ModelError, match=r"for images.*30: choose one of logistic, mlp"):
        build(name, (30,), classes=2)


def test_a_model_has_its_own_options_and_no_others() -> None:
    for overrides in (["model=logistic", "+model.width=3"], ["model=mlp", "+model.depth=8"]):
        with pytest.raises(ConfigError, match=r"model\.(width|depth): unexpected"):
            compose(overrides)
    with pytest.raises(ConfigError, match=r"no depth 18: set model\.depth to 8, 14, 20"):
        compose(["model=resnet", "model.depth=18"])
    with pytest.raises(ConfigError, match=r"set model\.width to a multiple of model\.heads=5"):
        compose(["model=transformer", "model.heads=5"])


def test_every_model_that_can_be_chosen_can_be_built() -> None:
    assert set(networks.BUILT_IN) == set(built_in("model"))


def test_first_weights_are_those_of_recorded_runs(build: Build) -> None:
    """Written down: a resumed run, and a device that replays, start from the same bits."""
    first = next(build("resnet", CIFAR, seed=5).parameters()).flatten()[:3]
    assert [value.hex() for value in first.tolist()] == [
        "0x1.0454580000000p-3",
        "-0x1.26ba460000000p-3",
        "0x1.4132ca0000000p-3",
    ]


class _Own(nn.Module):
    """A layer that torch does not know."""

    def __init__(self, reset: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(4))
        if reset:
            self.reset_parameters = lambda: nn.init.normal_(self.scale)


def _filled(*layers: nn.Module, seed: int = 0) -> torch.Tensor:
    module = nn.Sequential(*layers)
    initialise(module, seed)
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def test_other_layers_start_by_their_own_rule_from_the_seed_alone() -> None:
    def layers() -> list[nn.Module]:
        attention = nn.MultiheadAttention(4, 2)
        return [nn.Embedding(5, 4), nn.LayerNorm(4), nn.GRU(4, 3), attention, _Own(reset=True)]

    made = layers()
    state = torch.get_rng_state()
    first = _filled(*made, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(_filled(*layers(), seed=3), first)
    assert not torch.equal(_filled(*layers(), seed=4), first)
    assert bool(first.isfinite().all())


def test_layers_beside_a_known_one_leave_its_weights_alone_and_do_not_repeat_them() -> None:
    alone = _filled(nn.Linear(3, 2, bias=False))
    both = _filled(nn.Linear(3, 2, bias=False), _Drawn())
    assert torch.equal(both[:6], alone)
    assert not torch.equal(both[6:], alone * 3**0.5)


class _Drawn(nn.Module):
    """Uniform in [-1, 1), as a linear layer's weights are before they are scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, 3))

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -1, 1)


def test_a_parameter_that_nothing_fills_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"'1\.scale'.*_Own a method reset_parameters"):
        _filled(nn.Linear(3, 2), _Own(reset=False))
    with pytest.raises(ModelError, match=r"'0\.extra'.*_Wider"):
        _filled(_Wider(3, 2))
    with pytest.raises(ModelError, match=r"'0\.weight'.*LazyLinear"):
        _filled(nn.LazyLinear(2))


class _Wider(nn.Linear):
    """A known layer with a parameter that its reset_parameters forgets."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.extra = nn.Parameter(torch.zeros(outputs))
