"""Files of tensors that a device keeps in its folder, between rounds and restarts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save


def keep(tensors: Mapping[str, torch.Tensor], file: Path) -> None:
    """Write the file in one step, readable by its owner only."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(save({name: tensor.contiguous() for name, tensor in tensors.items()}))
    unfinished.rename(file)
