"""The examples of a device that are held out of training for evaluations on devices.

Which examples are held out follows from their number, the fraction and the seed of the run, so a device does not have
to remember it. No privacy rests on this choice: a server that chooses the seed chooses which examples are evaluated,
and the result is clipped in any case.
"""

from __future__ import annotations

import torch
from torch import Tensor


def held_out_count(examples: int, fraction: float) -> int:
    """Return how many of these examples are held out. It is about the fraction of them and at least one, but at least
    one stays for training. None if the fraction is 0."""
    return (
        0 if examples < 2 or not fraction else min(examples - 1, max(1, round(fraction * examples)))
    )


def split(examples: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the training examples and of those that are held out, each in ascending order."""
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(seed))
    count = held_out_count(examples, fraction)
    return order[count:].sort().values, order[:count].sort().values
