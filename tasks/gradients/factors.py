"""Computes the gradients of all examples of a batch from one forward and one backward pass.

Formal guarantee: the gradient of an example is the one that it would have alone in its batch. So clipping the gradient
bounds everything that the example contributes. Two ways ensure this:
- If all layers (`_SEPARATE`) and the loss (`treats_examples_apart`) are known to treat examples independently, the
  model runs on the batch as it is.
- Any other model runs under `torch.func.vmap`, where an example cannot see the others, whatever model and loss do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.overrides import TorchFunctionMode

from fedsketch.errors import ModelError
from fedsketch.tasks.built_in import treats_examples_apart
from fedsketch.tasks.gradients.layer_gradients import KnownLayer, known_layer
from fedsketch.tasks.gradients.output_gradients import output_gradients
from fedsketch.tasks.gradients.slot_gradients import ExplicitRows, SlotGradients
from fedsketch.tasks.models.fixed_norm import FixedNorm
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.models.lora import LoraLinear
from fedsketch.tasks.models.resnet import ResidualBlock
from fedsketch.tasks.models.transformer import Encoder, MeanToken, Patches
from fedsketch.tasks.task import losses_of

Hook = Callable[[nn.Module, tuple[Any, ...], Any], Tensor | None]
# The result of a pass: the inputs of the known layers and the gradients of their outputs (both by layer, (B, 1, ...)),
# and the gradients of all other parameters (B, ...).
Pass = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]

# Modules that treat the examples of a batch independently, by their exact type.
_SEPARATE: frozenset[type[nn.Module]] = frozenset(
    {
        *(nn.Sequential, nn.Identity, nn.Flatten, ResidualBlock, FixedNorm, LoraLinear),
        *(Patches, Encoder, MeanToken),
        *(nn.Linear, nn.Conv2d, nn.GroupNorm),
        *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
        *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    }
)


@dataclass(frozen=True)
class GradientPlan:
    """How the gradients of a model's parameters are computed, for examples of one shape."""

    known: dict[str, KnownLayer]  # by name of the layer
    # Parameters without a fast method, each with all names that it has in the module and its submodules.
    others: dict[str, list[str]]
    separate: bool  # whether the model is known to treat the examples of a batch independently
    scalars: int  # roughly how many numbers one example needs in memory

    @property
    def factored(self) -> int:
        """How many numbers of an example's gradient are stored as short factors."""
        return sum(layer.factored for layer in self.known.values())


def plan_gradients(model: FlatModel, example: Tensor) -> GradientPlan:
    """Make a plan by watching the model process one example, (1, ...).

    The fast method is used for the parameters of a layer if the layer is of a known kind and is called once, if that
    call is the only use of the parameters, and if nothing writes into the layer's input afterwards. All other
    parameters are left to the general method, `torch.func.grad`.
    """
    calls: dict[str, list[tuple[Tensor, int, Tensor]]] = {}

    def watch(name: str) -> Hook:
        def hook(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
                calls.setdefault(name, []).append((inputs[0], inputs[0]._version, output))

        return hook

    layers = {name: layer for name, layer in model.module.named_modules() if _plain(layer)}
    uses = _Uses(model.module.parameters())
    with torch.no_grad(), _hooked((layer, watch(name)) for name, layer in layers.items()), uses:
        model.module(example)
    known: dict[str, KnownLayer] = {}
    left = {slot.name for slot in model.layout}
    for name, seen in calls.items():
        inputs, version, output = seen[0]
        # Parameters of the layer that are not trained are constants. A parameter that several layers share is in the
        # layout under one name.
        own = {
            _joined(name, key): uses.count[id(p)]
            for key, p in layers[name].named_parameters()
            if p.requires_grad
        }
        alone = set(own.values()) == {1} and left.issuperset(own)
        if len(seen) > 1 or inputs._version != version or not alone:
            continue
        found = known_layer(layers[name], tuple(inputs.shape), tuple(output.shape))
        if found is not None:
            known[name] = found
            left.difference_update(own)
    others = {
        slot.name: _aliases(model.module, slot.name) for slot in model.layout if slot.name in left
    }
    general = sum(slot.stop - slot.start for slot in model.layout if slot.name in left)
    if others:
        _refuse_hidden_uses(model.module, others, example)
    scalars = uses.made + 2 * general + sum(layer.scalars for layer in known.values())
    apart = treats_examples_apart(model.task)
    separate = not others and apart and all(map(_separate, model.module.modules()))
    return GradientPlan(known, others, separate, scalars)


def _aliases(module: nn.Module, name: str) -> list[str]:
    parameter = module.get_parameter(name)
    return [
        _joined(owner, key)
        for owner, layer in module.named_modules()
        for key, own in layer.named_parameters(recurse=False, remove_duplicate=False)
        if own is parameter
    ]


def _refuse_hidden_uses(module: nn.Module, others: dict[str, list[str]], example: Tensor) -> None:
    """Raise ModelError if a parameter is also used in a way that the general method misses. It replaces the parameters
    in the module by other tensors, so it misses code that does not read them from the module."""
    found = {name: module.get_parameter(name) for name in others}
    uses = _Uses(found.values())
    copies = {name: parameter.detach().clone() for name, parameter in found.items()}
    with torch.no_grad(), uses:
        _call(module, copies, others, example)
    for name, parameter in found.items():
        if uses.count[id(parameter)]:
            raise ModelError(
                f"Parameter {name!r} is used from a place outside its module, so the gradients of single examples "
                "cannot be computed: read it from the module's attribute in `forward`."
            )


def _call(
    module: nn.Module, tensors: dict[str, Tensor], others: dict[str, list[str]], inputs: Tensor
) -> Tensor:
    """Call the module with these tensors as parameters, under all of their names.

    All names are passed, because torch's own search for tied weights (`tie_weights`) leaves a module that is used in
    two places with wrong parameters.
    """
    placed = {alias: tensors[name] for name, aliases in others.items() for alias in aliases}
    made: Tensor = functional_call(module, placed, (inputs,), tie_weights=False)
    return made


def _plain(layer: nn.Module) -> bool:
    """Return whether the layer does what its type says: it has no hooks and no `forward` of its own."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)
    return not any(hooks) and "forward" not in vars(layer)


def _separate(layer: nn.Module) -> bool:
    # Writing in place would change the stored output of the layer before.
    in_place = bool(getattr(layer, "inplace", False))
    flattens_all = isinstance(layer, nn.Flatten) and layer.start_dim < 1
    return type(layer) in _SEPARATE and _plain(layer) and not in_place and not flattens_all


def slot_gradients(
    model: FlatModel, how: GradientPlan, inputs: Tensor, targets: Tensor
) -> dict[str, SlotGradients]:
    """Return the gradients of the examples, by parameter."""
    run = _together if how.separate else _apart
    return _by_slot(model, how, run(model, how, inputs, targets))


def weighted_slot_gradients(
    model: FlatModel, how: GradientPlan, inputs: Tensor, targets: Tensor, weights: Tensor
) -> dict[str, SlotGradients]:
    """Return the gradients of w_i loss_i, for weights (B,). Only for a model that is known to treat examples
    independently."""
    assert how.separate
    return _by_slot(model, how, _together(model, how, inputs, targets, weights))


def _by_slot(model: FlatModel, how: GradientPlan, found_by_layer: Pass) -> dict[str, SlotGradients]:
    brought, outputs, others = found_by_layer
    found: dict[str, SlotGradients] = {name: ExplicitRows(rows) for name, rows in others.items()}
    trained = {slot.name for slot in model.layout}
    for name, layer in how.known.items():
        for own, gradients in layer.gradients(brought[name], outputs[name]).items():
            if _joined(name, own) in trained:
                found[_joined(name, own)] = gradients
    return found


def _together(
    model: FlatModel,
    how: GradientPlan,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
) -> Pass:
    """Run the model on the batch as it is."""
    brought: dict[str, Tensor] = {}
    made: dict[str, Tensor] = {}

    def keep(name: str) -> Hook:
        def hook(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            brought[name], made[name] = inputs[0].detach().unsqueeze(1), output

        return hook

    with torch.enable_grad():
        with _hooked((model.module.get_submodule(name), keep(name)) for name in how.known):
            made_of_all = model.module(inputs)
        if weights is None:
            loss = losses_of(model.task, made_of_all, targets).sum()
            gradients = torch.autograd.grad(loss, list(made.values()))
        else:
            start = output_gradients(model.task, made_of_all, targets, weights)
            gradients = torch.autograd.grad(made_of_all, list(made.values()), start)
    outputs = {name: rows.unsqueeze(1) for name, rows in zip(made, gradients, strict=True)}
    return brought, outputs, {}


def _apart(model: FlatModel, how: GradientPlan, inputs: Tensor, targets: Tensor) -> Pass:
    """Run the model on each example by itself, vectorised by `vmap`."""

    def loss(
        shifts: dict[str, Tensor], others: dict[str, Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        brought: dict[str, Tensor] = {}

        def shift(name: str) -> Hook:
            # The derivative with respect to a shift of the layer's output is the gradient of the output.
            def hook(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
                if name in brought:
                    raise ModelError(_CHANGED)
                brought[name] = inputs[0].detach()
                return output + shifts[name]

            return hook

        with _hooked((model.module.get_submodule(name), shift(name)) for name in how.known):
            made = _call(model.module, others, how.others, inputs)
        if brought.keys() != how.known.keys():
            raise ModelError(_CHANGED)
        return losses_of(model.task, made, targets).sum(), brought

    shifts = {
        name: torch.zeros(layer.outputs, device=model.device) for name, layer in how.known.items()
    }
    others: dict[str, Tensor] = {name: model.module.get_parameter(name) for name in how.others}
    of_each = vmap(grad(loss, argnums=(0, 1), has_aux=True), in_dims=(None, None, 0, 0))
    with torch.no_grad():
        (outputs, rest), brought = of_each(
            shifts, others, inputs.unsqueeze(1), targets.unsqueeze(1)
        )
    return brought, outputs, rest


_CHANGED = (
    "The model calls its layers in another way than for the first batch: "
    "make that depend only on the shape of the input."
)


class _Uses(TorchFunctionMode):
    """Counts how often each of these parameters is passed to a torch function, and how many numbers the functions
    return."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__()
        self.count = Counter({id(parameter): 0 for parameter in parameters})
        self.made = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        for tensor in _tensors((args, kwargs)):
            if id(tensor) in self.count:
                self.count[id(tensor)] += 1
        result = func(*args, **(kwargs or {}))
        self.made += sum(tensor.numel() for tensor in _tensors(result))
        return result


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)


@contextmanager
def _hooked(hooks: Iterable[tuple[nn.Module, Hook]]) -> Iterator[None]:
    """Register these forward hooks for the duration of the block."""
    with ExitStack() as stack:
        for layer, hook in hooks:
            stack.enter_context(layer.register_forward_hook(hook))
        yield


def _joined(layer: str, parameter: str) -> str:
    return f"{layer}.{parameter}" if layer else parameter
