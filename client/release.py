"""The last step on the device: clip every unit's row, sum, add this device's noise. Nothing unclipped leaves.

Formal guarantee of one call, against whoever sees the result: the sum of rows is L2-bounded per unit by `terms.clip` and
carries Gaussian noise of `terms.noise_std` per coordinate, from the operating system's randomness. How the shares of a
cohort add up is `strategies.noise`'s business.
"""

import os

import numpy as np
import torch

from privacy.clipping import clip_rows
from privacy.gaussian import add_gaussian
from privacy.randomness import Stream, derived_key
from strategies.messages import Terms

# Set by the simulating runtimes, never by a message: a server cannot make a device's noise predictable.
SEED_VARIABLE = "FEDSKETCH_SEEDED_NOISE"


def release(rows: torch.Tensor, terms: Terms, stream: Stream) -> np.ndarray:
    """The device's vector as it may leave."""
    if terms.clip is not None:
        rows = clip_rows(rows, terms.clip)
    vector = rows.sum(dim=0).cpu().numpy().astype(np.float64)
    if terms.noise_std > 0:
        vector = add_gaussian(vector, terms.noise_std, stream)
    return vector.astype(np.float32)


def device_stream(client: int, round: int) -> Stream:
    """Fresh secret randomness; or, in a simulation that was asked to be reproducible, a function of its seed."""
    seed = os.environ.get(SEED_VARIABLE)
    return Stream() if seed is None else Stream(derived_key(int(seed), "noise", client, round))
