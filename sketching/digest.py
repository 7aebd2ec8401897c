"""A hash of numbers, strings and tensors. It is the same on all machines if all bits are the same.

If server and devices compute a sketch by the same steps, they compare fingerprints before they rely on each other's
numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

Part = int | float | str | Tensor


def digest(parts: Iterable[Part]) -> str:
    """Return SHA-256 of the parts in order. The type of every part is hashed too, and the shape and dtype of
    tensors."""
    state = hashlib.sha256(b"fedsketch sketch state")
    for part in parts:
        header, body = _encoded(part)
        state.update(f"{header}:{len(body)};".encode())
        state.update(body)
    return state.hexdigest()


def _encoded(part: Part) -> tuple[str, memoryview]:
    if isinstance(part, Tensor):
        if part.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"Only float32 and float64 tensors can be hashed, not {part.dtype}.")
        array = part.detach().cpu().contiguous().numpy()
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        return f"{little.dtype.str}{list(part.shape)}", little.reshape(-1).view(np.uint8).data
    text = part.hex() if isinstance(part, float) else str(part)
    return type(part).__name__, memoryview(text.encode())
