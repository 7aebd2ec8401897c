"""Models that are a chain of linear layers and functions of single numbers, for many clients at once, each with parameters of its own.

Every layer is one batched product, forwards and backwards. `torch.func.vmap` makes the same products with several times the work around
them, and takes any model.
"""

import torch
from torch import Tensor, nn

from fedsketch.tasks.flat import FlatModel, Slot
from fedsketch.tasks.output_gradients import output_gradients
from fedsketch.tasks.shards import Batches

# Functions of single numbers, by their exact type: a subclass may compute something else.
_SINGLE: frozenset[type[nn.Module]] = frozenset(
    {nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity}
)


class Chain:
    """A model for which `is_chain` holds."""

    def __init__(self, model: FlatModel) -> None:
        self._model = model
        self._layers = list(model.module.named_children())
        self._slots = {slot.name: slot for slot in model.layout}

    def gradients(self, vectors: Tensor, batches: Batches) -> Tensor:
        """(n, d): the gradient of each client's mean loss at its own parameters, which are a row of `vectors`."""
        device = self._model.device
        shape = batches.weights.shape
        weights, targets = batches.weights.to(device), batches.targets.to(device)
        brought: dict[str, Tensor] = {}
        made: dict[str, Tensor] = {}
        with torch.enable_grad():
            outputs = self._outputs(vectors, batches.inputs.to(device), brought, made)
            start = output_gradients(
                self._model.task,
                outputs.flatten(0, 1),
                targets.flatten(0, 1),
                weights.flatten(),
            )
            backwards = torch.autograd.grad(outputs, list(made.values()), start.view(*shape, -1))
        rows = torch.empty_like(vectors)
        for (name, inputs), gradients in zip(brought.items(), backwards, strict=True):
            weight = self._slots[f"{name}.weight"]
            torch.bmm(gradients.mT, inputs, out=_stacked(rows, weight))
            bias = self._slots.get(f"{name}.bias")
            if bias is not None:
                torch.sum(gradients, dim=1, out=_stacked(rows, bias))
        return rows

    def _outputs(
        self, vectors: Tensor, inputs: Tensor, brought: dict[str, Tensor], made: dict[str, Tensor]
    ) -> Tensor:
        """What the model makes of the batches, (n, m, outputs); and by layer what came to it and what it made."""
        values = inputs
        for name, layer in self._layers:
            if isinstance(layer, nn.Flatten):
                values = values.flatten(2)
            elif isinstance(layer, nn.Linear):
                brought[name] = values.detach()
                weight = _stacked(vectors, self._slots[f"{name}.weight"])
                bias = self._slots.get(f"{name}.bias")
                if bias is None:
                    values = torch.bmm(values, weight.mT)
                else:
                    values = torch.baddbmm(_stacked(vectors, bias).unsqueeze(1), values, weight.mT)
                made[name] = values if values.requires_grad else values.requires_grad_()
            else:
                values = layer(values)
        return values


def is_chain(model: FlatModel) -> bool:
    """Whether the model is of this kind, takes all of its examples' numbers as they lie, and has all of its parameters trained.

    Only for models that are known to treat examples one by one (`tasks.factors`), so that no layer is changed by hooks or shared.
    """
    if type(model.module) is not nn.Sequential or not len(model.module):
        return False
    first, *rest = model.module
    flattens = type(first) is nn.Flatten and (first.start_dim, first.end_dim) == (1, -1)
    known = all(type(layer) is nn.Linear or type(layer) in _SINGLE for layer in rest)
    trained = all(parameter.requires_grad for parameter in model.module.parameters())
    return flattens and known and trained and any(type(layer) is nn.Linear for layer in rest)


def _stacked(vectors: Tensor, slot: Slot) -> Tensor:
    """(n, *shape): one parameter of all clients, as a view."""
    return vectors[:, slot.start : slot.stop].view(len(vectors), *slot.shape)
