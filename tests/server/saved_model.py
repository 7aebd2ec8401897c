"""The model that a run has saved in its folder."""

from pathlib import Path

import safetensors.torch
import torch


def saved_model(folder: Path) -> torch.Tensor:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])
