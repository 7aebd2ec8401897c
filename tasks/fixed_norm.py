"""Batch norm in a part of a model that is not trained.

Batch norm that learns mixes the examples of a batch, so it is refused (`tasks.flat`). With given statistics and no more
learning it is a fixed map of one example, x -> (x - mean) / sqrt(variance + eps) * weight + bias per channel. Here it
can be nothing else: there is no training mode that a forgotten `eval()` would leave on.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

_BATCH_NORMS = frozenset({nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d})


class FixedNorm(nn.Module):
    """The map of a batch norm layer with its present statistics, under the same names of parameters and buffers."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.eps = layer.eps
        self.weight, self.bias = layer.weight, layer.bias
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, getattr(layer, name))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.batch_norm(
            inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


def fixed(layer: nn.Module) -> nn.Module:
    """A batch norm of which nothing is trained, as a fixed map; every other layer as it is."""
    if type(layer) not in _BATCH_NORMS or not isinstance(layer.running_mean, torch.Tensor):
        return layer
    if any(parameter.requires_grad for parameter in layer.parameters()):
        return layer
    return FixedNorm(layer)  # type: ignore[arg-type]
