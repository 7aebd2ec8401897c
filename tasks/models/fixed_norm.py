"""Batch norm in a frozen part of a model.

Batch norm that is trained mixes the examples of a batch, so it is refused (`tasks.models.flat_model`). With given
statistics and without training it is a fixed function of one example, x -> (x - mean) / sqrt(variance + eps) * weight
+ bias per channel. `FixedNorm` computes only this function. It has no training mode, so a forgotten `eval()` does no
harm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_BATCH_NORMS = frozenset({nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d})


class FixedNorm(nn.Module):
    """A batch norm layer with its present statistics. Parameters and buffers keep their names."""

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
    """Return a `FixedNorm` for a batch norm layer without trained parameters, and every other layer as it is."""
    if type(layer) not in _BATCH_NORMS or not isinstance(layer.running_mean, torch.Tensor):
        return layer
    if any(parameter.requires_grad for parameter in layer.parameters()):
        return layer
    return FixedNorm(layer)  # type: ignore[arg-type]
