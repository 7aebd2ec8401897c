"""Privacy loss distributions of (sampled) Gaussian releases, by dp-accounting. Imported only where it is asked for: 1.3 s.

Only add/remove and zero-out adjacency come here. Both have the same dominating pairs, one per direction, which compose
(Zhu, Dong, Wang 2022, Theorem 10); dp-accounting keeps the two directions apart and rounds pessimistically.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

INTERVAL = 1e-4
"""Discretisation of the privacy loss: dp-accounting's default."""


@lru_cache(maxsize=32)
def _sampled_gaussian(rate: float, noise_multiplier: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, value_discretization_interval=INTERVAL, sampling_prob=rate
    )


def epsilon(counts: Mapping[tuple[float, float], int], mu_squared: float, delta: float) -> float:
    """Epsilon of `counts[(rate, noise multiplier)]` sampled releases and unsampled ones worth `mu_squared`."""
    composed: Any = None
    if mu_squared > 0.0:
        composed = _sampled_gaussian(1.0, mu_squared**-0.5)
    for (rate, noise_multiplier), count in counts.items():
        part = _sampled_gaussian(rate, noise_multiplier).self_compose(count)
        composed = part if composed is None else composed.compose(part)
    return 0.0 if composed is None else float(composed.get_epsilon_for_delta(delta))
