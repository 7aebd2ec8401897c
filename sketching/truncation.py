"""How many directions to keep: each rule takes the eigenvalues (in descending order) and returns a number.

Which directions the next sketch uses and which directions the PCA remembers are two questions. A direction that is
below the noise floor now may rise above it after more rounds. So the floor decides what the next sketch uses, not what
the PCA drops.
"""

from __future__ import annotations

import torch
from torch import Tensor


def keep_count(eigenvalues: Tensor, count: int) -> int:
    """Return at most `count` directions."""
    return min(count, len(eigenvalues))


def keep_energy(eigenvalues: Tensor, share: float) -> int:
    """Return DOME's energy rule: the smallest number of directions with `share` (0 to 1) of the sum of the eigenvalues.

    Eigenvalues of sum g g^T are already energies (squared norms). The paper's text squares them once more.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"The share of the energy must be between 0 and 1, not {share}.")
    sums = torch.cumsum(eigenvalues.double(), dim=0)
    if len(sums) == 0 or float(sums[-1]) <= 0.0:
        return 0
    reached = int((sums < share * sums[-1]).sum())
    return min(reached + 1, len(sums)) if share > 0.0 else 0


def keep_above(eigenvalues: Tensor, floor: float) -> int:
    """Return the directions above the noise floor (`sketching.noise_floor`), which noise alone does not explain."""
    return int((eigenvalues > floor).sum())
