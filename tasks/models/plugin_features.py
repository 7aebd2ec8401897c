"""Feature maps of installed packages: frozen torch modules in front of any model (docs/how-to/extend.md).

Formal guarantee: the features of an example depend on this example alone, because the module gets one example at a
time and is in evaluation mode. So a clip bounds what an example contributes, whatever the module would do with a
batch. And features that are stored under the content of their example are valid together with any other examples.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from fedsketch.conf.plugins import FEATURES, implementation, release
from fedsketch.errors import ModelError

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class OwnMap:
    """A module for examples of one shape, and `after`, the shape of the features of one example. `edition` is a
    version, which changes whenever the values may change."""

    name: str
    module: nn.Module
    after: Shape
    edition: str

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the features, (N, *after) in float32."""
        # A loop would fix the size of batches in an exported model. The export compares the results.
        if torch.compiler.is_exporting():
            made: Tensor = self.module(inputs)
            return made
        rows = torch.empty(len(inputs), *self.after)
        with torch.no_grad():
            for row, example in zip(rows, inputs, strict=True):
                features = self.module(example.unsqueeze(0))
                if features.shape != (1, *self.after):
                    raise ModelError(
                        f"model.features={self.name} makes {tuple(features.shape[1:])} of an example and says "
                        f"{self.after}: correct the shape that its function returns."
                    )
                row.copy_(features[0])
        return rows


@lru_cache(maxsize=2)
def own_map(name: str, shape: Shape) -> OwnMap:
    """Return the feature map that an installed package makes for examples of this shape."""
    module, after = implementation(FEATURES, name)(shape)
    module = module.eval().requires_grad_(False)
    return OwnMap(name, module, tuple(after), edition_of(name, module))


def edition_of(name: str, module: nn.Module) -> str:
    """Return a hash of the release of the map's package, its layers, its parameters and its buffers."""
    layers = re.sub(r"0x[0-9a-f]+", "", repr(module))  # memory addresses differ between processes
    state = hashlib.blake2b(f"{release(FEATURES, name)} {layers}".encode(), digest_size=16)
    for key, tensor in sorted(module.state_dict().items()):
        state.update(f"{key} {tensor.dtype} {tuple(tensor.shape)};".encode())
        state.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()
