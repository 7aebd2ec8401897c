"""Layers with a fast method for per-example gradients: they are computed from the layer's inputs and the gradients of
its outputs, without a pass per example.

`known_layer` compares the exact type of a layer, because a subclass may compute something else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn import functional

from fedsketch.tasks.gradients.slot_gradients import (
    ExplicitRows,
    OuterProducts,
    SlotGradients,
    SumsOfOuterProducts,
    few_positions,
)

Shape = tuple[int, ...]


class KnownLayer(ABC):
    """A layer, and how the gradients of its parameters are computed."""

    outputs: Shape  # the shape of its output for one example
    scalars: int  # how many numbers `gradients` needs for one example, besides its arguments
    factored: int = 0  # the number of parameters with gradients that are outer products

    @abstractmethod
    def gradients(self, inputs: Tensor, outputs: Tensor) -> dict[str, SlotGradients]:
        """Return the gradients by name of the parameter. The arguments are the inputs of the layer for B examples and
        the gradients of its outputs, both (B, *shape)."""


class LinearLayer(KnownLayer):
    """y = W x + b on the last dimension. The other dimensions are positions at which W is used."""

    def __init__(self, layer: nn.Linear, inputs: Shape, outputs: Shape) -> None:
        self.outputs = outputs
        self._bias = layer.bias is not None
        self._positions = math.prod(inputs[:-1])
        work = _work(layer.in_features, layer.out_features, self._positions)
        self.scalars = 0 if self._positions == 1 else work
        self.factored = layer.weight.numel() if self._positions == 1 else 0

    def gradients(self, inputs: Tensor, outputs: Tensor) -> dict[str, SlotGradients]:
        a = inputs.reshape(len(inputs), self._positions, -1)
        b = outputs.reshape(len(outputs), self._positions, -1)
        found: dict[str, SlotGradients] = {}
        if self._positions == 1:
            found["weight"] = OuterProducts(a[:, 0], b[:, 0])
        else:
            found["weight"] = SumsOfOuterProducts(a.mT.unsqueeze(1), b.mT.unsqueeze(1))
        if self._bias:
            found["bias"] = ExplicitRows(b.sum(dim=1))
        return found


class ConvolutionLayer(KnownLayer):
    """A convolution of one image: a linear layer on the patches under its kernel, for each group of channels."""

    def __init__(self, layer: nn.Conv2d, outputs: Shape) -> None:
        self.outputs = outputs
        self._layer = layer
        self._columns = math.prod(layer.weight.shape[1:])
        positions = math.prod(outputs[-2:])
        work = _work(self._columns, layer.out_channels // layer.groups, positions)
        self.scalars = layer.groups * (self._columns * positions + work)

    def gradients(self, inputs: Tensor, outputs: Tensor) -> dict[str, SlotGradients]:
        layer = self._layer
        a = self._patches(inputs.squeeze(1)).reshape(len(inputs), layer.groups, self._columns, -1)
        b = outputs.reshape(len(outputs), layer.groups, layer.out_channels // layer.groups, -1)
        found: dict[str, SlotGradients] = {"weight": SumsOfOuterProducts(a, b)}
        if layer.bias is not None:
            found["bias"] = ExplicitRows(b.sum(dim=3))
        return found

    def _patches(self, images: Tensor) -> Tensor:
        """Return the patches as (B, channels, kernel height, kernel width, output height, output width). It is a view,
        and copying it is faster than `functional.unfold`."""
        layer = self._layer
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        patches = functional.pad(images, _padding(layer), mode)
        for axis in (0, 1):
            spread = layer.dilation[axis]
            window = spread * (layer.kernel_size[axis] - 1) + 1
            patches = patches.unfold(2 + axis, window, layer.stride[axis])[..., ::spread]
        return patches.permute(0, 1, 4, 5, 2, 3)


class NormalisedGroups(KnownLayer):
    """Group normalisation, which scales and shifts each channel."""

    def __init__(self, layer: nn.GroupNorm, outputs: Shape) -> None:
        self.outputs = outputs
        self.scalars = 2 * math.prod(outputs)
        self._layer = layer

    def gradients(self, inputs: Tensor, outputs: Tensor) -> dict[str, SlotGradients]:
        images = inputs.squeeze(1)
        normalised = functional.group_norm(images, self._layer.num_groups, eps=self._layer.eps)
        b = outputs.reshape(*images.shape[:2], -1)
        scale = (b * normalised.view_as(b)).sum(dim=2)
        return {"weight": ExplicitRows(scale), "bias": ExplicitRows(b.sum(dim=2))}


def known_layer(layer: nn.Module, inputs: Shape, outputs: Shape) -> KnownLayer | None:
    """Return the fast method for a layer with inputs and outputs of these shapes for one example. None if there is
    none, so that the general method is used (`tasks.gradients.factors`)."""
    if type(layer) is nn.Linear:
        return LinearLayer(layer, inputs, outputs)
    if type(layer) is nn.Conv2d and len(inputs) == 4 and inputs[0] == 1:
        return ConvolutionLayer(layer, outputs)
    if type(layer) is nn.GroupNorm and layer.affine and inputs[0] == 1:
        return NormalisedGroups(layer, outputs)
    return None


def _padding(layer: nn.Conv2d) -> list[int]:
    """Return the padding left, right, top and bottom, as `functional.pad` expects it."""
    sides: list[int] = []
    for axis in (1, 0):
        if layer.padding == "same":
            total = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            sides += [total // 2, total - total // 2]
        elif layer.padding == "valid":
            sides += [0, 0]
        else:
            sides += [int(layer.padding[axis])] * 2
    return sides


def _work(inputs: int, outputs: int, positions: int) -> int:
    """Return how many numbers are needed to compute a norm: two Gram matrices, or the gradient itself."""
    return 2 * positions**2 if few_positions(inputs, outputs, positions) else inputs * outputs
