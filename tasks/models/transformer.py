"""A small vision transformer (Dosovitskiy et al. 2021) that has only linear layers.

An image becomes a sequence of square patches, the tokens. Blocks of attention and two linear layers follow; tokens are
normalised before each ("pre-norm"). Then come the mean over all tokens and a linear layer.

All parameters are weights (and biases) of `nn.Linear`, for which there are fast methods for the gradients of single
examples and of many clients at once, and for layer-wise sketches. For this:
- A token consists of its pixels and of its position in the image, one-hot. The columns of the first layer that belong
  to positions are the learned position embeddings.
- Normalisations have no scale and no shift, because the linear layer after them can express both.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional


class Patches(nn.Module):
    """Maps (B, channels, height, width) to (B, tokens, numbers): the pixels of each patch, and its position."""

    def __init__(self, patch: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._patch = patch
        channels, *sides = shape
        self._missing = [-side % patch for side in sides]
        self.tokens = math.prod(-(-side // patch) for side in sides)
        self.pixels = channels * patch**2

    @property
    def patch_size(self) -> int:
        """How many numbers a token has."""
        return self.pixels + self.tokens

    def forward(self, images: Tensor) -> Tensor:
        down, right = self._missing
        images = functional.pad(images, (0, right, 0, down))
        size, channels, height, width = images.shape
        p = self._patch
        squares = images.view(size, channels, height // p, p, width // p, p)
        tokens = squares.permute(0, 2, 4, 1, 3, 5).reshape(size, self.tokens, self.pixels)
        # With the norm of pixels of variance 1, so that both have the same weight in the first layer.
        places = math.sqrt(self.pixels) * torch.eye(self.tokens).to(tokens)
        return torch.cat([tokens, places.expand(size, -1, -1)], dim=2)


class Encoder(nn.Module):
    """One block: attention between all tokens, then two linear layers on each token. Both have a residual
    connection."""

    def __init__(self, width: int, heads: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self._heads = heads
        self.looks = nn.Linear(width, 3 * width, bias=bias)  # queries, keys and values
        self.joined = nn.Linear(width, width, bias=bias)
        self.hidden = nn.Linear(width, hidden, bias=bias)
        self.back = nn.Linear(hidden, width, bias=bias)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.joined(self._attention(self.looks(normalised(tokens))))
        changed: Tensor = tokens + self.back(functional.gelu(self.hidden(normalised(tokens))))
        return changed

    def _attention(self, looks: Tensor) -> Tensor:
        """Return softmax(queries times keys) times values, for each head."""
        by_head = looks.view(*looks.shape[:2], 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = by_head.unbind()
        weights = torch.softmax(queries @ keys.mT / math.sqrt(queries.shape[-1]), dim=-1)
        return (weights @ values).transpose(1, 2).flatten(2)


class MeanToken(nn.Module):
    """Maps (B, tokens, width) to (B, width): the mean of the normalised tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        return normalised(tokens).mean(dim=1)


def normalised(tokens: Tensor) -> Tensor:
    """Normalise each token to mean 0 and variance 1."""
    return functional.layer_norm(tokens, tokens.shape[-1:])


def transformer(
    shape: tuple[int, ...],
    outputs: int,
    *,
    patch: int,
    width: int,
    depth: int,
    heads: int,
    expansion: int,
    bias: bool,
) -> nn.Sequential:
    """Return a transformer for images of this shape."""
    patches = Patches(patch, shape)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        patches=patches, embedding=nn.Linear(patches.patch_size, width, bias=bias)
    )
    for number in range(1, depth + 1):
        layers[f"block{number}"] = Encoder(width, heads, expansion * width, bias)
    layers["mean"] = MeanToken()
    layers["output"] = nn.Linear(width, outputs, bias=bias)
    return nn.Sequential(layers)
