"""Chooses which part of a model is trained: `model.trainable` and `model.lora_rank`.

Only parameters with `requires_grad` are among the d numbers that are clipped, sketched, noised and sent
(`tasks.models.flat_model`). The others are frozen. A frozen part is a fixed function, so it costs no privacy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase

from torch import nn

from fedsketch.conf.settings import ModelSettings
from fedsketch.errors import ModelError
from fedsketch.tasks.models.fixed_norm import fixed
from fedsketch.tasks.models.lora import adapted, start_adapters


def all_frozen(module: nn.Module) -> nn.Module:
    """Freeze all of the module, for inference. Changes the module."""
    return _replaced(module.requires_grad_(False), lambda name, layer: fixed(layer))


def with_trained_part(
    module: nn.Module, settings: ModelSettings, seed: int | None = None
) -> nn.Module:
    """Make the parameters that the settings name trainable, freeze the others, and add adapters if the settings ask
    for them. Changes the module.

    Without such settings, `requires_grad` stays as the module has set it. Adapters are initialised from the seed.
    Without a seed they only have shapes.
    """
    rank, alpha = settings.lora_rank, settings.lora_alpha
    if settings.trainable is not None:
        _train(module, settings.trainable)
    elif rank is not None:
        module.requires_grad_(False)
    module = _replaced(module, lambda name, layer: fixed(layer))
    if rank is not None:
        scale = rank if alpha is None else alpha
        alone = _with_own_weight(module)
        module = _replaced(
            module,
            lambda name, layer: adapted(name, layer, rank, scale) if layer in alone else layer,
        )
        if seed is not None:
            start_adapters(module, seed)
    elif alpha is not None:
        raise ModelError(
            f"model.lora_alpha={alpha:g} scales adapters, but there are none: set model.lora_rank too."
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError(
            "Nothing of the model is trained, because it has no linear layer for an adapter, or all its parameters "
            "are frozen: set model.trainable."
        )
    return module


def _train(module: nn.Module, patterns: tuple[str, ...]) -> None:
    """Train the parameters of which a name matches a pattern, and freeze the rest."""
    named = list(module.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name, _ in named):
            raise ModelError(
                f"model.trainable has '{pattern}', which matches no parameter: the model has "
                f"{', '.join(name for name, _ in named)}."
            )
    module.requires_grad_(False)
    for name, parameter in named:
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_()


def _with_own_weight(module: nn.Module) -> set[nn.Module]:
    """Return the layers that share no parameter with another layer. An adapter changes the weight of one layer only,
    so a shared weight could not be merged back into the module without adapters."""
    owners = [
        (layer, parameter)
        for layer in module.modules()
        for parameter in layer.parameters(recurse=False)
    ]
    held = Counter(id(parameter) for _, parameter in owners)
    shared = {layer for layer, parameter in owners if held[id(parameter)] > 1}
    return {layer for layer, _ in owners} - shared


def _replaced(module: nn.Module, replace: Callable[[str, nn.Module], nn.Module]) -> nn.Module:
    """Replace every layer by the result of `replace(name, layer)`. A layer that is used in two places stays one
    layer."""
    made: dict[nn.Module, nn.Module] = {
        layer: replace(name, layer) for name, layer in module.named_modules()
    }
    for layer in made:
        for key, part in layer._modules.items():
            if part is not None and made[part] is not part:
                setattr(layer, key, made[part])
    return made[module]
