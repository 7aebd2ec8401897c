"""Finds models by name. The data determine their size, and the initial weights are a function of the seed alone.

A model is first made on torch's meta device, which needs no memory and draws no random numbers, and is then
initialised. So building a model neither reads nor changes torch's global generators. Models of installed packages
(`conf.plugins`) are made and initialised in the same way.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedsketch.conf.model.cnn import CnnConfig
from fedsketch.conf.model.mlp import MlpConfig
from fedsketch.conf.model.resnet import ResnetConfig
from fedsketch.conf.model.transformer import TransformerConfig
from fedsketch.conf.plugins import implementation
from fedsketch.conf.settings import ModelSettings
from fedsketch.errors import ModelError
from fedsketch.tasks.models.initialisation import initialise
from fedsketch.tasks.models.memory_limit import refuse_beyond_memory
from fedsketch.tasks.models.resnet import resnet
from fedsketch.tasks.models.trainable_part import with_trained_part
from fedsketch.tasks.models.transformer import transformer

Shape = tuple[int, ...]  # the shape of an example; of an image channels, height, width
# Arguments: the settings of the model, the shape of an example, the number of outputs.
Build = Callable[[Any, Shape, int], nn.Module]


def build(settings: ModelSettings, shape: Shape, outputs: int, seed: int) -> nn.Module:
    """Return a model for examples of this shape, with this many outputs. The task defines what the outputs mean."""
    module = _outline(settings, shape, outputs)
    scalars = sum(value.numel() for value in module.state_dict().values())
    advice = f"choose a smaller model than {settings.name} with these settings, or smaller examples"
    refuse_beyond_memory(scalars, advice, ModelError)
    # Does the same as Module.to_empty, which would import sympy, and this takes a second.
    memory = {
        key: torch.empty(value.shape, dtype=value.dtype)
        for key, value in module.state_dict().items()
    }
    module.load_state_dict(memory, assign=True)
    initialise(module, seed)
    return module


def parameters(settings: ModelSettings, shape: Shape, outputs: int) -> int:
    """Return the number of parameters, including frozen ones and adapters, without allocating them."""
    module = with_trained_part(_outline(settings, shape, outputs), settings)
    return sum(one.numel() for one in module.parameters())


def _outline(settings: ModelSettings, shape: Shape, outputs: int) -> nn.Module:
    """Return the model on torch's meta device: shapes without memory."""
    if outputs < 1 or not shape or min(shape) < 1:
        raise ModelError(
            f"Model {settings.name} needs examples of at least one number and at least one output, got the shape "
            f"{tuple(shape)} and {outputs} outputs."
        )
    if settings.name in _SMALLEST_SIDE:
        _check_size(settings.name, shape)
    make = BUILT_IN.get(settings.name) or implementation("model", settings.name)
    with torch.device("meta"):
        module: nn.Module = make(settings, shape, outputs)
    return module


def _check_size(name: str, shape: Shape) -> None:
    if len(shape) != 3:
        fitting = ", ".join(other for other in BUILT_IN if other not in _SMALLEST_SIDE)
        raise ModelError(
            f"Model {name} is for images, channels x height x width, and the data has examples of the shape "
            f"{' x '.join(map(str, shape))}: choose one of {fitting}."
        )
    side, smallest = min(shape[1:]), _SMALLEST_SIDE[name]
    if side < smallest:
        fitting = ", ".join(other for other in BUILT_IN if _SMALLEST_SIDE.get(other, 1) <= side)
        raise ModelError(
            f"Model {name} needs images of at least {smallest} x {smallest}, but the data has "
            f"{' x '.join(map(str, shape))} (channels x height x width): choose one of {fitting}."
        )


def _features(layers: nn.Module, shape: Shape) -> int:
    """Return how many numbers the layers compute from one image. On the meta device this costs nothing."""
    return int(layers(torch.empty(1, *shape)).numel())


def _logistic(settings: ModelSettings, shape: Shape, outputs: int) -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            output=nn.Linear(math.prod(shape), outputs),
        )
    )


def _mlp(settings: MlpConfig, shape: Shape, outputs: int) -> nn.Module:
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    before = math.prod(shape)
    for number, width in enumerate(settings.widths, 1):
        suffix = "" if number == 1 else str(number)
        layers[f"hidden{suffix}"] = nn.Linear(before, width, bias=settings.bias)
        layers[f"relu{suffix}"] = nn.ReLU()
        before = width
    layers["output"] = nn.Linear(before, outputs, bias=settings.bias)
    return nn.Sequential(layers)


def _cnn(settings: CnnConfig, shape: Shape, outputs: int) -> nn.Module:
    """Return the small network that papers on private learning often use (Papernot et al. 2021): 26,010 parameters for
    1 x 28 x 28. Below 14 pixels the first convolution has stride 1."""
    width = settings.width
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
            output=nn.Linear(2 * width, outputs),
        )
    )


def _lenet5(settings: ModelSettings, shape: Shape, outputs: int) -> nn.Module:
    """Return LeNet-5 (LeCun et al. 1998), designed for 32 x 32. Smaller images are padded by 2, as MNIST was in the
    paper."""
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
            output=nn.Linear(84, outputs),
        )
    )


def _resnet(settings: ResnetConfig, shape: Shape, outputs: int) -> nn.Module:
    return resnet(shape[0], outputs, settings.width, settings.depth)


def _transformer(settings: TransformerConfig, shape: Shape, outputs: int) -> nn.Module:
    return transformer(
        shape,
        outputs,
        patch=settings.patch,
        width=settings.width,
        depth=settings.depth,
        heads=settings.heads,
        expansion=settings.expansion,
        bias=settings.bias,
    )


BUILT_IN: dict[str, Build] = {
    "logistic": _logistic,
    "mlp": _mlp,
    "cnn": _cnn,
    "lenet5": _lenet5,
    "resnet": _resnet,
    "transformer": _transformer,
}
_SMALLEST_SIDE = {"cnn": 8, "lenet5": 12, "resnet": 8, "transformer": 1}
