"""The initial weights of a model, a function of the seed alone."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedsketch.errors import ModelError


def initialise(module: nn.Module, seed: int) -> None:
    """Give every parameter its initial value.

    Linear layers, convolutions and group norms get the same distribution as in torch, from a separate generator. Every
    other layer is initialised by its own `reset_parameters`, with torch's generator seeded before and restored
    afterwards. A parameter that is not initialised this way is an error: it would contain whatever was in memory.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if not is_lazy(parameter):
                parameter.fill_(math.nan)
    others = [layer for layer in module.modules() if not _known(layer, generator)]
    with torch.random.fork_rng(devices=[]):
        # Seeded by the next number of our generator, so that these layers do not repeat the draws of those above.
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        # Submodules first: a module that contains them may overwrite their values.
        for layer in reversed(others):
            _reset(layer)
    for name, parameter in module.named_parameters():
        if is_lazy(parameter) or bool(parameter.isnan().any()):
            layer = module.get_submodule(name.rpartition(".")[0])
            raise ModelError(
                f"Nothing gives the parameter '{name}' of the model its initial value: "
                f"give the layer {type(layer).__name__} a method reset_parameters that does."
            )


def _known(layer: nn.Module, generator: torch.Generator) -> bool:
    """Initialise a layer of a known type. Returns False for any other layer."""
    if type(layer) is nn.GroupNorm:
        layer.reset_parameters()
    elif type(layer) is nn.Linear or type(layer) is nn.Conv2d:
        bound = 1 / math.sqrt(layer.weight[0].numel())
        _fill(layer.weight, bound, generator)
        if layer.bias is not None:
            _fill(layer.bias, bound, generator)
    else:
        return False
    return True


def _reset(layer: nn.Module) -> None:
    if any(True for kind in (layer.parameters, layer.buffers) for _ in kind(recurse=False)):
        # torch.nn.MultiheadAttention only has the second name.
        for name in ("reset_parameters", "_reset_parameters"):
            if hasattr(layer, name):
                getattr(layer, name)()
                return


def _fill(parameter: torch.Tensor, bound: float, generator: torch.Generator) -> None:
    """Fill with uniform values in [-bound, bound), with the same bits on every processor. torch's own scaling is a
    multiplication and an addition, which some processors fuse and others round twice. Here every operation but one
    multiplication is exact."""
    with torch.no_grad():
        between = 2 * torch.rand(parameter.shape, generator=generator) - 1
        parameter.copy_(between.double() * bound)
