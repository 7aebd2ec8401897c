"""A fixed layer in front of any model: every pixel less a half, times four."""

from torch import nn


def make(shape: tuple[int, ...]) -> tuple[nn.Module, tuple[int, ...]]:
    layer = nn.Conv2d(shape[0], shape[0], kernel_size=1, groups=shape[0])
    nn.init.constant_(layer.weight, 4.0)
    nn.init.constant_(layer.bias, -2.0)
    return layer, shape
