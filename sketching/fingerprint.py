"""One hash for a state of numbers, strings and tensors, the same wherever the bits are the same.

Two sides that make a sketch by the same steps compare these before they trust each other's numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

Part = int | float | str | Tensor


def digest(parts: Iterable[Part]) -> str:
    """SHA-256 over the parts in order; every part carries its type, and tensors shape and dtype."""
    state = hashlib.sha256(b"fedsketch sketch state")
    for part in parts:
        header, body = _encoded(part)
        state.update(f"{header}:{len(body)};".encode())
        state.update(body)
    return state.hexdigest()


def _encoded(part: Part) -> tuple[str, memoryview]:
    if isinstance(part, Tensor):
        if part.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"Only float32 and float64 have canonical bytes, not {part.dtype}.")
        array = part.detach().cpu().contiguous().numpy()
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        return f"{little.dtype.str}{list(part.shape)}", little.reshape(-1).view(np.uint8).data
    text = part.hex() if isinstance(part, float) else str(part)
    return type(part).__name__, memoryview(text.encode())
