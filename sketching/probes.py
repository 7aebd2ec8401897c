"""Probes: random directions that are orthogonal to the learned directions U, so that a sketch also sees the rest of
the space. They are Gaussian vectors from a seed, minus their part in U, made orthonormal.

Only the seed is sent. The Gaussians are bit-equal everywhere. The linear algebra library then computes probes that may
differ in their last bits between machines or thread counts; on one machine they are the same. Compare fingerprints if
you rely on more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsketch.sketching.cholesky_qr import orthonormalise
from fedsketch.sketching.seeded_sketch import PublicStream, Purpose
from fedsketch.sketching.sketch import checked_seed


def probes(seed: int, count: int, basis: Tensor) -> Tensor:
    """Return `count` orthonormal columns (d x count), orthogonal to the orthonormal columns of `basis` (d x r, r may
    be 0).

    They have the device and dtype of the basis, and are uniformly distributed in its orthogonal complement.
    """
    checked_seed(seed)
    d, rank = basis.shape
    if not 0 <= count <= d - rank:
        raise ValueError(
            f"{rank} learned directions in {d:,} dimensions leave room for 0 to {d - rank:,} probes, "
            f"not {count:,}: make the sketch smaller."
        )
    rows = torch.empty(count, d, dtype=basis.dtype, device=basis.device)
    for i in range(count):
        rows[i] = torch.from_numpy(PublicStream(seed, Purpose.PROBES, i).gaussian(d))
    # Two rounds of projection and CholeskyQR: the second removes the errors that cancellation leaves in the first.
    for _ in range(2):
        rows = orthonormalise(rows - (rows @ basis) @ basis.T)
    return rows.T
