"""Gaussian noise on a vector, for runs whose server is trusted; the mechanism that `release.Gaussian` books."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.mechanisms.randomness import Stream


def add_gaussian(vector: NDArray[np.floating], std: float, stream: Stream) -> NDArray[np.float64]:
    """vector + N(0, std^2) per coordinate, in float64, as a new array. `std` 0 draws nothing."""
    if not (std >= 0.0 and math.isfinite(std)):
        raise ValueError(f"a standard deviation is finite and not negative; {std} is not.")
    values = np.asarray(vector, dtype=np.float64)
    if std == 0.0:
        return values.copy()
    return values + std * stream.gaussian(values.size).reshape(values.shape)
