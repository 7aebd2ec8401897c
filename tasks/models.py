"""Models by name, sized by the data, with weights that are a function of the seed alone.

A model is first made on torch's meta device, which costs no memory and draws no random numbers, and
then filled from its own generator: building one neither reads nor moves torch's global generators.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fedsketch.tasks.errors import ModelError
from fedsketch.tasks.resnet import resnet

Shape = tuple[int, int, int]  # channels, height, width


@dataclass(frozen=True)
class _Kind:
    """How a model is made, the smallest image it takes, and defaults (None: no such option)."""

    make: Callable[[Shape, int, int, int], nn.Module]
    smallest_side: int
    width: int | None = None
    depth: int | None = None


def build(
    name: str,
    *,
    input_shape: Shape,
    classes: int,
    seed: int,
    width: int | None = None,
    depth: int | None = None,
) -> nn.Module:
    """A model from images of `input_shape` to `classes` logits; None takes the model's default.

    `width` is the number of hidden units of mlp and of channels of the first layer of cnn and
    resnet; `depth` the number of layers of resnet (8, 14, 20, ...).
    """
    if name not in _KINDS:
        raise ModelError(f"There is no model {name!r}: choose one of {', '.join(NAMES)}.")
    kind = _KINDS[name]
    _check_fit(name, input_shape, classes)
    width = _option(name, "width", width, kind.width)
    depth = _option(name, "depth", depth, kind.depth)
    if name == "resnet" and (depth < 8 or depth % 6 != 2):
        raise ModelError(f"Model resnet has no depth {depth}: choose 8, 14, 20, 26, 32, ...")
    with torch.device("meta"):
        module = kind.make(input_shape, classes, width, depth)
    # What Module.to_empty does, without the second that it takes to import sympy.
    memory = {
        key: torch.empty(value.shape, dtype=value.dtype)
        for key, value in module.state_dict().items()
    }
    module.load_state_dict(memory, assign=True)
    _initialise(module, torch.Generator().manual_seed(seed))
    return module


def _check_fit(name: str, shape: Shape, classes: int) -> None:
    if classes < 2:
        raise ModelError(f"Model {name} needs data of at least 2 classes, got {classes}.")
    if len(shape) != 3 or min(shape) < 1:
        raise ModelError(
            f"Model {name} needs data of the shape channels x height x width, got {tuple(shape)}."
        )
    side, smallest = min(shape[1:]), _KINDS[name].smallest_side
    if side < smallest:
        fitting = ", ".join(other for other in NAMES if _KINDS[other].smallest_side <= side)
        raise ModelError(
            f"Model {name} needs images of at least {smallest} x {smallest}, but the data has "
            f"{' x '.join(map(str, shape))} (channels x height x width): choose one of {fitting}."
        )


def _option(name: str, option: str, value: int | None, default: int | None) -> int:
    if default is None:
        if value is not None:
            raise ModelError(f"Model {name} has no {option}: leave model.{option} unset.")
        return 0
    if value is not None and value < 1:
        raise ModelError(f"Model {name} needs a {option} of at least 1, got {value}.")
    return default if value is None else value


def _initialise(module: nn.Module, generator: torch.Generator) -> None:
    """torch's own default for these layers, from a generator of ours."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            _fill(layer.weight, bound, generator)
            if layer.bias is not None:
                _fill(layer.bias, bound, generator)
        elif isinstance(layer, nn.GroupNorm):
            layer.reset_parameters()


def _fill(parameter: torch.Tensor, bound: float, generator: torch.Generator) -> None:
    """Uniform in [-bound, bound), with the same bits on every processor: torch's own scaling multiplies and adds, which some fuse
    and some round twice. Here all is exact but one multiplication."""
    with torch.no_grad():
        between = 2 * torch.rand(parameter.shape, generator=generator) - 1
        parameter.copy_(between.double() * bound)


def _features(layers: nn.Module, shape: Shape) -> int:
    """How many numbers the layers make of one image; free of cost on the meta device."""
    return int(layers(torch.empty(1, *shape)).numel())


def _logistic(shape: Shape, classes: int, width: int, depth: int) -> nn.Module:
    channels, height, columns = shape
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            output=nn.Linear(channels * height * columns, classes),
        )
    )


def _mlp(shape: Shape, classes: int, width: int, depth: int) -> nn.Module:
    channels, height, columns = shape
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden=nn.Linear(channels * height * columns, width),
            relu=nn.ReLU(),
            output=nn.Linear(width, classes),
        )
    )


def _cnn(shape: Shape, classes: int, width: int, depth: int) -> nn.Module:
    """The usual small network of private learning (Papernot et al. 2021): 26,010 parameters for
    1 x 28 x 28. Below 14 pixels the first convolution keeps the resolution."""
    stride = 2 if min(shape[1:]) >= 14 else 1
    features = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(shape[0], width, 8, stride, padding=3),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2, 1),
            conv2=nn.Conv2d(width, 2 * width, 4, 2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2, 1),
            flatten=nn.Flatten(),
        )
    )
    return nn.Sequential(
        OrderedDict(
            features=features,
            hidden=nn.Linear(_features(features, shape), 2 * width),
            relu=nn.ReLU(),
            output=nn.Linear(2 * width, classes),
        )
    )


def _lenet5(shape: Shape, classes: int, width: int, depth: int) -> nn.Module:
    """LeCun et al. 1998, made for 32 x 32: smaller images are padded by 2, as MNIST was."""
    features = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(shape[0], 6, 5, padding=2 if min(shape[1:]) < 32 else 0),
            tanh1=nn.Tanh(),
            pool1=nn.AvgPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            tanh2=nn.Tanh(),
            pool2=nn.AvgPool2d(2),
            flatten=nn.Flatten(),
        )
    )
    return nn.Sequential(
        OrderedDict(
            features=features,
            hidden1=nn.Linear(_features(features, shape), 120),
            tanh3=nn.Tanh(),
            hidden2=nn.Linear(120, 84),
            tanh4=nn.Tanh(),
            output=nn.Linear(84, classes),
        )
    )


def _resnet(shape: Shape, classes: int, width: int, depth: int) -> nn.Module:
    return resnet(shape[0], classes, width, depth)


_KINDS = {
    "logistic": _Kind(_logistic, smallest_side=1),
    "mlp": _Kind(_mlp, smallest_side=1, width=32),
    "cnn": _Kind(_cnn, smallest_side=8, width=16),
    "lenet5": _Kind(_lenet5, smallest_side=12),
    "resnet": _Kind(_resnet, smallest_side=8, width=16, depth=8),
}
NAMES = tuple(_KINDS)
