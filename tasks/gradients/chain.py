"""Gradients of many clients at once, for models that are a chain of linear layers and activations.

All clients have the same parameters, or each has its own. Every layer is one batched matrix product forwards and one or
two backwards. `torch.func.vmap` computes the same products for any model, but with several times the overhead.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsketch.tasks.data.shards import Batches
from fedsketch.tasks.gradients.output_gradients import output_gradients
from fedsketch.tasks.models.flat_model import FlatModel, Slot

# Activations, which work on single numbers. The exact type counts: a subclass may compute something else.
_SINGLE: frozenset[type[nn.Module]] = frozenset(
    {nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity}
)

# oneDNN's product of many rows with few columns takes three quarters of the time of `functional.linear`. It has no
# derivative, and needs none here.
_ONE_DNN = hasattr(torch.ops.mkldnn, "_linear_pointwise") and bool(
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
)


class Chain:
    """A model for which `is_chain` holds."""

    def __init__(self, model: FlatModel) -> None:
        self._model = model
        self._layers = list(model.module.named_children())
        self._slots = {slot.name: slot for slot in model.layout}
        linear = (isinstance(layer, nn.Linear) for _, layer in self._layers)
        self._first = list(linear).index(True)  # layers before it have no parameters

    def gradients(self, vectors: Tensor, batches: Batches) -> Tensor:
        """Return the gradient of each client's mean loss, (n, d). `vectors` has the parameters: a row for each client,
        or one vector for all."""
        rows = vectors.new_empty(len(batches.weights), self._model.size)
        for slot, outputs, inputs in self._factors(vectors, batches):
            if inputs is None:
                torch.sum(outputs, dim=1, out=_stacked(rows, slot))
            else:
                torch.bmm(outputs.mT, inputs, out=_stacked(rows, slot))
        return rows

    def descend(self, vectors: Tensor, batches: Batches, rate: float) -> None:
        """Move each client's row of `vectors` against its gradient. The gradient is never stored: products are added to
        the parameters."""
        for slot, outputs, inputs in self._factors(vectors, batches):
            if inputs is None:
                _stacked(vectors, slot).sub_(outputs.sum(dim=1), alpha=rate)
            else:
                _stacked(vectors, slot).baddbmm_(outputs.mT, inputs, alpha=-rate)

    def _factors(
        self, vectors: Tensor, batches: Batches
    ) -> Iterator[tuple[Slot, Tensor, Tensor | None]]:
        """Yield each parameter with the gradients at its layer's outputs, (n, m, outputs), and the layer's inputs,
        (n, m, inputs), or None for a bias. The gradient of a weight is their product over a client's examples. The
        gradient of a bias is the sum of the output gradients."""
        device = self._model.device
        shape = batches.weights.shape
        weights, targets = batches.weights.to(device), batches.targets.to(device)
        passed = self._passed(vectors, batches.inputs.to(device))
        gradients = output_gradients(
            self._model.task,
            passed[-1].flatten(0, 1),
            targets.flatten(0, 1),
            weights.flatten(),
        ).view(*shape, -1)
        for place in reversed(range(self._first, len(self._layers))):
            name, layer = self._layers[place]
            if not isinstance(layer, nn.Linear):
                gradients = _backwards(layer, passed[place], passed[place + 1], gradients)
                continue
            weight, of_outputs = self._slots[f"{name}.weight"], gradients
            if place > self._first:  # now, because the caller may change the weight
                gradients = _product(gradients, _stacked(vectors, weight))
            yield weight, of_outputs, passed[place]
            bias = self._slots.get(f"{name}.bias")
            if bias is not None:
                yield bias, of_outputs, None

    @torch.no_grad()
    def _passed(self, vectors: Tensor, inputs: Tensor) -> list[Tensor]:
        """Return the inputs of each layer, (n, m, inputs), and last the outputs of the model, (n, m, outputs)."""
        passed = [inputs]
        for name, layer in self._layers:
            if isinstance(layer, nn.Flatten):
                values = passed[-1].flatten(2)
            elif isinstance(layer, nn.Linear):
                bias = self._slots.get(f"{name}.bias")
                shift = None if bias is None else _stacked(vectors, bias)
                values = _linear(
                    passed[-1], _stacked(vectors, self._slots[f"{name}.weight"]), shift
                )
            else:
                values = layer(passed[-1])
            passed.append(values)
        return passed


def is_chain(model: FlatModel) -> bool:
    """Return whether the model is such a chain, flattens its examples first, and trains all of its parameters.

    The model must be known to treat examples one by one (`tasks.gradients.factors`), so that no layer is shared or has
    hooks.
    """
    if type(model.module) is not nn.Sequential or not len(model.module):
        return False
    first, *rest = model.module
    flattens = type(first) is nn.Flatten and (first.start_dim, first.end_dim) == (1, -1)
    # The backward pass needs the inputs that a layer would overwrite in place.
    known = all(
        type(layer) is nn.Linear
        or (type(layer) in _SINGLE and not getattr(layer, "inplace", False))
        for layer in rest
    )
    trained = all(parameter.requires_grad for parameter in model.module.parameters())
    return flattens and known and trained and any(type(layer) is nn.Linear for layer in rest)


def _linear(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear layer to (n, m, inputs), with one weight for all clients or one for each."""
    if weight.dim() == 2:
        plain = values.device.type == "cpu" and values.dtype == torch.float32
        if _ONE_DNN and plain:
            made: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")
            return made
        return functional.linear(values, weight, bias)
    if bias is None:
        return torch.bmm(values, weight.mT)
    return torch.baddbmm(bias.unsqueeze(1), values, weight.mT)


def _product(values: Tensor, weight: Tensor) -> Tensor:
    """Multiply (n, m, outputs) by one weight for all clients or by one for each."""
    return values @ weight if weight.dim() == 2 else torch.bmm(values, weight)


def _backwards(layer: nn.Module, inputs: Tensor, outputs: Tensor, gradients: Tensor) -> Tensor:
    """Return the gradients at the inputs of an activation, from those at its outputs."""
    if type(layer) is nn.ReLU:  # one call instead of autograd's many
        return torch.ops.aten.threshold_backward(gradients, outputs, 0)
    with torch.enable_grad():
        again = inputs.detach().requires_grad_()
        return torch.autograd.grad(layer(again), again, gradients)[0]


def _stacked(vectors: Tensor, slot: Slot) -> Tensor:
    """Return a view of one parameter: (n, *shape) for n clients, (*shape) for a single vector."""
    part = vectors.narrow(-1, slot.start, slot.stop - slot.start)
    return part.view(*vectors.shape[:-1], *slot.shape)
