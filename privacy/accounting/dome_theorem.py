"""The noise of DOME's Theorem 3.3 as printed: sigma = sqrt(8 T ln(1/delta)) / epsilon for T compositions. It is used
only with `accounting=paper`.

The theorem is valid but loose. At epsilon 4 and delta 1e-5 it asks for more than twice the noise of exact Gaussian
accounting (`privacy.accounting.calibration`). Charging every round for examples that are used only once per pass costs
another factor of sqrt(rounds per pass).
"""

from __future__ import annotations

import math


def paper_noise_multiplier(*, epsilon: float, delta: float, compositions: int) -> float:
    """Return the standard deviation of the sum's noise divided by the clip C; for add/remove or zero-out adjacency
    without sampling."""
    if not (epsilon > 0.0 and 0.0 < delta < 1.0 and compositions >= 1):
        raise ValueError(
            "the theorem needs epsilon > 0, delta between 0 and 1 and at least one composition."
        )
    return math.sqrt(8.0 * compositions * math.log(1.0 / delta)) / epsilon
