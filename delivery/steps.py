"""A server step, and several of them as bytes: the means need no more than their numbers."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

# A device that missed more steps is sent the whole state. Each step costs it time, however short, before it charges
# anything.
MOST_STEPS = 1000
_HEAD = struct.Struct("<QdI")  # round, deviation, and how many numbers the mean has
_NUMBER = np.dtype("<f4")


@dataclass(frozen=True)
class Step:
    """Everything that a server step depends on beside the state: its round, the released mean, and the noise of each
    number.

    `given` are parts of the state that only the server can compute, for example from public data: their values after
    the step.
    """

    round: int
    mean: torch.Tensor
    deviation: float
    given: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def scalars(self) -> int:
        """How many numbers are sent for this step."""
        return self.mean.numel() + sum(tensor.numel() for tensor in self.given.values())


def packed(steps: Sequence[Step]) -> bytes:
    """Return the steps as bytes, without what is given beside their means."""
    return b"".join(
        _HEAD.pack(step.round, step.deviation, step.mean.numel())
        + step.mean.cpu().numpy().astype(_NUMBER).tobytes()
        for step in steps
    )


def unpacked(content: bytes) -> list[Step]:
    """Return the steps. Raises ValueError if the bytes are no steps, or more than MOST_STEPS."""
    steps: list[Step] = []
    start = 0
    while start < len(content):
        if len(steps) == MOST_STEPS:
            raise ValueError(f"The parcel has more than the {MOST_STEPS} steps that are allowed.")
        if len(content) - start < _HEAD.size:
            raise ValueError("The last step of the parcel is cut off.")
        current, deviation, count = _HEAD.unpack_from(content, start)
        start += _HEAD.size
        if len(content) - start < count * _NUMBER.itemsize:
            raise ValueError(f"The mean of round {current} is cut off.")
        mean = np.frombuffer(content, _NUMBER, count, start).astype(np.float32)
        steps.append(Step(current, torch.from_numpy(mean), deviation))
        start += count * _NUMBER.itemsize
    return steps
