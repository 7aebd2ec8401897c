"""The inputs of a model's layers, as the rows that their weight matrices multiply.

A weight of shape (o, i, ...) is seen as a matrix of o rows with i * ... numbers each. The rows of its gradient are
linear combinations of these inputs: the inputs of a linear layer, or the patches that a convolution processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from fedsketch.errors import ModelError
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel

CHUNK = 256  # examples at a time

RowsOf = Callable[[torch.Tensor], torch.Tensor]


@torch.no_grad()
def layer_inputs(
    model: FlatModel, examples: Examples, names: Sequence[str]
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield, for one part of the examples after the other, the rows that each weight multiplies, by the weight's
    name."""
    rows_of = {name: _rows_of(model.module, name) for name in names}
    for start in range(0, len(examples), CHUNK):
        inputs = examples.inputs[start : start + CHUNK].to(model.device)
        yield _seen(model.module, inputs, rows_of)


def _seen(
    module: nn.Module, inputs: torch.Tensor, rows_of: Mapping[str, RowsOf]
) -> dict[str, torch.Tensor]:
    """Return the inputs of each layer for these examples."""
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in rows_of}

    def keep(name: str, layer: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        seen[name].append(rows_of[name](arguments[0]))

    with ExitStack() as hooks:
        for name in rows_of:
            layer = module.get_submodule(name.rpartition(".")[0])
            hooks.callback(layer.register_forward_pre_hook(partial(keep, name)).remove)
        module(inputs)
    return {name: torch.cat(parts) for name, parts in seen.items() if parts}


def _rows_of(module: nn.Module, name: str) -> RowsOf:
    """Return the function that turns the inputs of the layer with this weight into rows."""
    place, _, weight = name.rpartition(".")
    layer = module.get_submodule(place)
    if weight == "weight" and isinstance(layer, nn.Linear):
        return lambda inputs: inputs.reshape(-1, layer.in_features)
    if weight == "weight" and isinstance(layer, nn.Conv2d) and _is_plain(layer):
        return lambda inputs: _patches(layer, inputs)
    raise ModelError(
        f"The inputs of weight {name!r} ({type(layer).__name__}) cannot be determined. This works for Linear, and for "
        "Conv2d with zero padding and one group: choose another model, or set strategy.directions=learned."
    )


def _is_plain(layer: nn.Conv2d) -> bool:
    padding_is_known = not isinstance(layer.padding, str)
    return layer.groups == 1 and layer.padding_mode == "zeros" and padding_is_known


def _patches(layer: nn.Conv2d, inputs: torch.Tensor) -> torch.Tensor:
    columns = functional.unfold(
        inputs,
        layer.kernel_size,
        dilation=layer.dilation,
        padding=layer.padding,  # type: ignore[arg-type]
        stride=layer.stride,
    )
    return columns.transpose(1, 2).flatten(0, 1)
