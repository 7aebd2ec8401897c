"""The tensors of a module by name."""

from __future__ import annotations

from torch import Tensor, nn


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers. A tensor that several layers share is there under all of its names."""
    parameters = module.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(module.named_buffers(remove_duplicate=False))}
