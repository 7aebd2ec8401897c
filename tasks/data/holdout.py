"""The examples of a device that are held out of training for evaluations on devices.

A device does not have to remember which ones they are: they follow from the fraction and the seed of the run, and
- from the number of examples (`split`), where the unit of privacy is the client;
- from the content of each example by itself (`held_out_by_content`), on devices that protect single examples. There
  one example more or less must not move another one from training to evaluation.

A server that chooses the seed chooses which examples are evaluated. The result is clipped in any case.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from fedsketch.tasks.data.examples import Examples


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


def held_out_by_content(examples: Examples, fraction: float, seed: int) -> Tensor:
    """Return whether each example is held out, (N,) in bool. Each is with this probability, by a hash of its content.

    Formal guarantee: the answer for an example depends on this example, the fraction and the seed alone.
    """
    key = hashlib.blake2b(str(seed).encode(), digest_size=32).digest()
    held = torch.zeros(len(examples), dtype=torch.bool)
    if not fraction:
        return held
    rows = zip(examples.inputs.numpy(), examples.targets.numpy(), strict=True)
    for place, (row, target) in enumerate(rows):
        content = hashlib.blake2b(row.tobytes(), key=key, digest_size=8)
        content.update(target.tobytes())
        held[place] = int.from_bytes(content.digest(), "big") < fraction * 2.0**64
    return held
