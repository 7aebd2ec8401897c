"""Feature maps of installed packages: frozen torch modules in front of any model (docs/how-to/extend.md).

Formal guarantee: the features of an example depend on this example alone, because the module sees one at a time,
without training mode. So a clip bounds what an example contributes, whatever the module would do with a batch; and a
feature that is kept under the content of its example is right among whatever other examples it is asked for again.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from fedsketch.conf.plugins import FEATURES, implementation, release
from fedsketch.tasks.errors import ModelError

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class OwnMap:
    """A module for examples of one shape, and the shape of what it makes of one. `edition` changes when its values
    may."""

    name: str
    module: nn.Module
    after: Shape
    edition: str

    def __call__(self, inputs: Tensor) -> Tensor:
        """(N, *after) in float32."""
        if (
            torch.compiler.is_exporting()
        ):  # a loop would fix the size of batches; who exports compares the results
            made: Tensor = self.module(inputs)
            return made
        rows = torch.empty(len(inputs), *self.after)
        with torch.no_grad():
            for row, example in zip(rows, inputs, strict=True):
                features = self.module(example.unsqueeze(0))
                if features.shape != (1, *self.after):
                    raise ModelError(
                        f"model.features={self.name} makes {tuple(features.shape[1:])} of an example and says {self.after}: "
                        "repair the shape that its function returns."
                    )
                row.copy_(features[0])
        return rows


@lru_cache(maxsize=2)
def own_map(name: str, shape: Shape) -> OwnMap:
    """The map that an installed package makes for examples of this shape."""
    module, after = implementation(FEATURES, name)(shape)
    module = module.eval().requires_grad_(False)
    return OwnMap(name, module, tuple(after), edition_of(name, module))


def edition_of(name: str, module: nn.Module) -> str:
    """A hash of the release of its package, its layers, its parameters and its buffers."""
    layers = re.sub(r"0x[0-9a-f]+", "", repr(module))  # addresses are not the same in every process
    state = hashlib.blake2b(f"{release(FEATURES, name)} {layers}".encode(), digest_size=16)
    for key, tensor in sorted(module.state_dict().items()):
        state.update(f"{key} {tensor.dtype} {tuple(tensor.shape)};".encode())
        state.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()
