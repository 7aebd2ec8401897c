"""The residual network for small images (He et al. 2016, section 4.2), with group normalisation.

It has no batch normalisation, because that mixes the examples of a batch. Then no clip bounds what one example
contributes, and the running statistics would leave the device without protection.
"""

from __future__ import annotations

import math

import torch
from torch import nn

MAX_GROUPS = 8


def norm(channels: int) -> nn.GroupNorm:
    """Return group normalisation with the largest number of groups (1, 2, 4 or 8) that divides the channels."""
    return nn.GroupNorm(math.gcd(MAX_GROUPS, channels), channels)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is a projection if the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = norm(after)
        self.shortcut = (
            nn.Identity()
            if before == after and stride == 1
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.norm1(self.conv1(inputs)).relu()
        total: torch.Tensor = self.norm2(self.conv2(hidden)) + self.shortcut(inputs)
        return total.relu()


def resnet(channels: int, classes: int, width: int, depth: int) -> nn.Sequential:
    """Return a network with three stages of (depth - 2) / 6 blocks, with width, 2 width and 4 width channels."""
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        norm(width),
        nn.ReLU(),
    ]
    before = width
    for stage in range(3):
        after = width * 2**stage
        for block in range((depth - 2) // 6):
            layers.append(ResidualBlock(before, after, stride=2 if stage > 0 and block == 0 else 1))
            before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return nn.Sequential(*layers)
