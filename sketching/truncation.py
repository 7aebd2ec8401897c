"""How many directions to keep: rules that look at the eigenvalues (descending) and answer with a number.

What is used for sensing and what is remembered are two questions. A direction that is below the noise floor today may
rise above it when more rounds have added up, so the floor decides what the next sketch looks at, not what the PCA
forgets.
"""

from __future__ import annotations

import torch
from torch import Tensor


def keep_count(eigenvalues: Tensor, count: int) -> int:
    """At most `count` of them."""
    return min(count, len(eigenvalues))


def keep_energy(eigenvalues: Tensor, share: float) -> int:
    """DOME's energy rule: the fewest directions that hold `share` (0 to 1) of the sum of the eigenvalues.

    Eigenvalues of sum g g^T are energies already; the paper's text squares them once more.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"The share of the energy is between 0 and 1, not {share}.")
    sums = torch.cumsum(eigenvalues.double(), dim=0)
    if len(sums) == 0 or float(sums[-1]) <= 0.0:
        return 0
    reached = int((sums < share * sums[-1]).sum())
    return min(reached + 1, len(sums)) if share > 0.0 else 0


def keep_above(eigenvalues: Tensor, floor: float) -> int:
    """Those above the floor (`sketching.noise_floor`): those that noise alone would not explain."""
    return int((eigenvalues > floor).sum())
