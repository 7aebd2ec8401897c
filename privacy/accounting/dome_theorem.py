"""The noise of DOME's Theorem 3.3 as printed: sigma = sqrt(8 T ln(1/delta)) / epsilon for T compositions. For
`accounting=paper` only.

It is sound and loose: at epsilon 4, delta 1e-5 more than twice the noise that the exact Gaussian accounting needs
(`privacy.accounting.calibration`), and charging every round for examples that are used once per pass costs another
sqrt(rounds per pass).
"""

from __future__ import annotations

import math


def paper_noise_multiplier(*, epsilon: float, delta: float, compositions: int) -> float:
    """Standard deviation of the sum's noise over the clip C; add/remove or zero-out adjacency, no sampling."""
    if not (epsilon > 0.0 and 0.0 < delta < 1.0 and compositions >= 1):
        raise ValueError(
            "the theorem needs epsilon > 0, delta between 0 and 1 and at least one composition."
        )
    return math.sqrt(8.0 * compositions * math.log(1.0 / delta)) / epsilon
