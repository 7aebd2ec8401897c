"""Adaptive clipping: the clip follows a quantile of the update norms. Andrew, Thakkar, McMahan, Ramaswamy 2021.

Every client also says whether its update was within the clip, as the number b - 1/2 with b in {0, 1}: sensitivity 1/2 under add/remove
and zero-out adjacency. The sum of these numbers gets its own Gaussian noise of standard deviation `count_std` and is a release like any
other. It comes from the same units in the same round as the updates, so the two are one Gaussian release (their Theorem 1):

    1/z^2 = 1/z_update^2 + 1/(2 count_std)^2.

Account for `Gaussian(z)`, add noise z_update to the updates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


def update_noise_multiplier(total: float, count_std: float) -> float:
    """z_update for which updates and count together cost what `Gaussian(total)` costs."""
    if total == 0.0:
        return 0.0
    left = total**-2 - (2.0 * count_std) ** -2 if count_std > 0.0 else -math.inf
    if left <= 0.0:
        raise ValueError(
            f"the count alone spends the whole budget: its noise must exceed {total / 2.0:.6g}, and is {count_std:.6g}."
        )
    return left**-0.5


def joint_noise_multiplier(update: float, count_std: float) -> float:
    """The noise multiplier to account for when updates have `update` and the count has `count_std`."""
    if update == 0.0 or count_std == 0.0:
        return 0.0
    return (update**-2 + (2.0 * count_std) ** -2) ** -0.5


def within_clip(norm: float, clip: float) -> float:
    """What a client contributes to the count: b - 1/2."""
    return 0.5 if norm <= clip else -0.5


@dataclass(frozen=True)
class AdaptiveClip:
    """The clip and the rule that moves it; `updated` is post-processing of the noisy count."""

    clip: float
    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        if not (self.clip > 0.0 and math.isfinite(self.clip)):
            raise ValueError(f"the clip must be positive and finite, not {self.clip}.")
        if not 0.0 <= self.quantile <= 1.0:
            raise ValueError(f"a quantile lies between 0 and 1; {self.quantile} does not.")

    def updated(self, noisy_count: float, clients: float) -> AdaptiveClip:
        """Geometric step: C exp(-rate (share - quantile)); `clients` is the (expected) number behind the noisy sum of b - 1/2."""
        share = min(1.0, max(0.0, noisy_count / clients + 0.5))
        return replace(
            self, clip=self.clip * math.exp(-self.learning_rate * (share - self.quantile))
        )
