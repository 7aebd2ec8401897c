"""The last step on the device: clip every unit's row, sum, add this device's noise. Nothing unclipped leaves.

Formal guarantee of one call, against whoever sees the result, under zero-out adjacency: each unit's row is L2-bounded by the clip of
the terms, and the sum carries this device's noise, from the operating system's randomness: Gaussian of the terms' standard
deviation, or exact Skellam noise on rounded integers. How the shares of a cohort add up is `strategies.shared.terms`' business.
"""

import os

import numpy as np
import torch
from numpy.typing import NDArray

from fedsketch.privacy.mechanisms.clipping import UnsafeUpdateError, clip_rows
from fedsketch.privacy.mechanisms.encoding import encode
from fedsketch.privacy.mechanisms.gaussian import add_gaussian
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.strategies.shared.terms import GaussianTerms, RingTerms, Terms

# Set by the simulating runtimes, never by a message: a server cannot make a device's noise predictable.
SEED_VARIABLE = "FEDSKETCH_SEEDED_NOISE"


def release(rows: torch.Tensor, terms: Terms, stream: Stream, round: int) -> NDArray[np.generic]:
    """The device's vector as it may leave: float32, or ring integers in uint64."""
    if isinstance(terms, RingTerms):
        # The signs of a rotation are public and new in every round.
        return encode(rows.cpu().numpy(), terms.plan, stream, rotation_seed=round)
    return _release_real(rows, terms, stream)


def _release_real(rows: torch.Tensor, terms: GaussianTerms, stream: Stream) -> NDArray[np.float32]:
    if terms.clip is not None:
        rows = clip_rows(rows, terms.clip)
    elif not bool(torch.isfinite(rows).all()):
        raise UnsafeUpdateError(
            "the update holds nan or inf: lower the learning rate or check the data."
        )
    vector = rows.sum(dim=0, dtype=torch.float64).cpu().numpy()
    return add_gaussian(vector, terms.noise_std, stream).astype(np.float32)


def device_stream(client: int, round: int) -> Stream:
    """Fresh secret randomness; or, in a simulation that was asked to be reproducible, a function of its seed."""
    seed = os.environ.get(SEED_VARIABLE)
    return Stream() if seed is None else Stream(derived_key(int(seed), "noise", client, round))
