"""A one-dimensional convolution along the rows of an image, which fedsketch's own models do not have."""

import math

from torch import nn

from fedsketch_toy.conf.model.toy import ToyModel


def build(settings: ToyModel, shape: tuple[int, int, int], classes: int) -> nn.Module:
    features = settings.width * math.prod(shape[1:])
    convolution = nn.Conv1d(shape[0], settings.width, kernel_size=1)
    return nn.Sequential(nn.Flatten(2), convolution, nn.Flatten(), nn.Linear(features, classes))
