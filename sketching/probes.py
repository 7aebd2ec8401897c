"""Random directions that look where the learned ones do not: Gaussian from a seed, minus their part in U, orthonormal.

They travel as a seed. The Gaussians are bit-equal everywhere; what the linear algebra library makes of them may differ
in the last bits between machines or thread counts, and is the same on one machine (compare fingerprints before relying
on more).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsketch.sketching.cholesky_qr import orthonormalise
from fedsketch.sketching.seeded import Purpose, Words
from fedsketch.sketching.sketch import checked_seed


def probes(seed: int, count: int, basis: Tensor) -> Tensor:
    """`count` orthonormal columns (d x count), orthogonal to the orthonormal columns of `basis` (d x r, r may be 0).

    On the basis's device and of its dtype; uniformly distributed in the orthogonal complement.
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
        rows[i] = torch.from_numpy(Words(seed, Purpose.PROBES, i).gaussian(d))
    # Projecting twice, and CholeskyQR2 around the second time: each first pass leaves what cancellation lost.
    for _ in range(2):
        rows = orthonormalise(rows - (rows @ basis) @ basis.T)
    return rows.T
