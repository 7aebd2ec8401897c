"""Which part of a model is trained: `model.trainable` and `model.lora_rank`.

Only parameters with `requires_grad` are the d numbers that are clipped, sketched, sent and noised (`tasks.flat`). The
others are frozen:
a fixed map, like everything else that a model does with an example, and it costs no privacy.
"""

from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase

from torch import nn

from fedsketch.conf.settings import ModelSettings
from fedsketch.tasks.errors import ModelError
from fedsketch.tasks.fixed_norm import fixed
from fedsketch.tasks.lora import adapted, start_adapters


def all_frozen(module: nn.Module) -> nn.Module:
    """The module with nothing to train: for use. Changes the module."""
    return _replaced(module.requires_grad_(False), lambda name, layer: fixed(layer))


def with_trained_part(
    module: nn.Module, settings: ModelSettings, seed: int | None = None
) -> nn.Module:
    """The module with the part that the settings name to be trained, and adapters where they ask for them; changes the
    module.

    Without settings, what the module itself says is trained. Adapters start from the seed; without one they have shapes
    only.
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
            f"model.lora_alpha={alpha:g} scales adapters, and there are none: set model.lora_rank too."
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError(
            "Nothing of the model is trained, because it has no linear layer for an adapter or froze itself: set "
            "model.trainable."
        )
    return module


def _train(module: nn.Module, patterns: tuple[str, ...]) -> None:
    """Train what a pattern matches, by any of its names, and freeze the rest."""
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
    """The layers that share no parameter with another: what an adapter makes of a shared one would have no place in the
    plain module."""
    owners = [
        (layer, parameter)
        for layer in module.modules()
        for parameter in layer.parameters(recurse=False)
    ]
    held = Counter(id(parameter) for _, parameter in owners)
    shared = {layer for layer, parameter in owners if held[id(parameter)] > 1}
    return {layer for layer, _ in owners} - shared


def _replaced(module: nn.Module, replace: Callable[[str, nn.Module], nn.Module]) -> nn.Module:
    """The module with every layer as `replace` has it, by name and layer. A layer in two places stays one layer."""
    made: dict[nn.Module, nn.Module] = {
        layer: replace(name, layer) for name, layer in module.named_modules()
    }
    for layer in made:
        for key, part in layer._modules.items():
            if part is not None and made[part] is not part:
                setattr(layer, key, made[part])
    return made[module]
