"""Loads the weights that a run starts from (`model.weights`), a safetensors file on the server. Devices get them with
the model, and never a path."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor, nn

from fedsketch.errors import ModelError
from fedsketch.tasks.models.named_tensors import named_tensors

log = logging.getLogger(__name__)


def load_weights(module: nn.Module, path: str) -> None:
    """Copy the tensors of the file into the parameters and batch norm statistics of the same names. Parameters that
    are not in the file stay as they are, and the log names them. A tensor of the file that is not in the model is an
    error."""
    # The number of batches behind the statistics is not needed.
    parameters, tensors = (
        {name: x for name, x in found.items() if not name.endswith("num_batches_tracked")}
        for found in (named_tensors(module), _read(path))
    )
    for name, tensor in tensors.items():
        if name not in parameters:
            raise ModelError(
                f"model.weights={path} has a tensor '{name}', but the model has none of that name: rename it or take "
                f"it out (the model has {', '.join(parameters)})."
            )
        shape = tuple(parameters[name].shape)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"model.weights={path} has a tensor '{name}' of shape {tuple(tensor.shape)}, but the model expects "
                f"{shape}: take a file for the same model, width, features and data, or take the tensor out."
            )
        if not tensor.is_floating_point() or not torch.isfinite(tensor.float()).all():
            raise ModelError(
                f"model.weights={path} has a tensor '{name}' with values that are not finite floats: repair the file."
            )
    if not tensors:
        raise ModelError(f"model.weights={path} holds no tensor: take another file.")
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)
    missing = [name for name in parameters if name not in tensors]
    if missing:
        log.warning("Not in %s, and started from the seed: %s.", path, ", ".join(missing))


def _read(path: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(Path(path).expanduser())
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"model.weights={path} cannot be read ({error}): name a complete .safetensors file on the server."
        ) from error
