"""Renyi differential privacy: the orders, and the conversion of a curve to (epsilon, delta).

A curve is an array with one entry for each order in `ORDERS`. The entry is an upper bound on the Renyi divergence of
that order between the outputs on any two neighbouring data sets, in both directions. Infinity is a valid entry and
means that no theorem gives a bound at that order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]

LARGEST_SAMPLED_ORDER = 1024
"""For sampled mechanisms the bound at an order is a sum over 0..order. It is not computed above this order."""

# A superset of dp-accounting's default orders. Some theorems hold for integer orders only.
ORDERS: Curve = np.unique(
    np.concatenate(
        [
            np.round(np.arange(1.1, 11.0, 0.1), 1),
            np.arange(2.0, 257.0),
            np.arange(288.0, LARGEST_SAMPLED_ORDER + 1.0, 32.0),
            np.array([1536.0, 2048.0, 4096.0, 8192.0, 16384.0]),
        ]
    )
)
ORDERS.setflags(write=False)

IS_INTEGER: NDArray[np.bool_] = np.round(ORDERS) == ORDERS


def gaussian(noise_multiplier: float, orders: Curve = ORDERS) -> Curve:
    """Return alpha / (2 z^2): Mironov 2017, Proposition 7. The noise multiplier is the noise divided by the
    sensitivity."""
    if noise_multiplier == 0.0:
        return np.full(orders.shape, np.inf)
    return orders / (2.0 * noise_multiplier**2)


def epsilon(curve: Curve, delta: float, orders: Curve = ORDERS) -> float:
    """Return the smallest epsilon that the curve proves, over all orders: Canonne, Kamath, Steinke 2020, Proposition
    12 (in v4).

    As in dp-accounting, epsilon is 0 if the divergence is so small that the Bretagnolle-Huber inequality alone is
    enough: sqrt(1 - exp(-KL)) <= delta.
    """
    if np.any(delta**2 + np.expm1(-curve) > 0.0):
        return 0.0
    usable = orders > 1.01
    alpha, divergence = orders[usable], curve[usable]
    candidates = divergence + np.log1p(-1.0 / alpha) - np.log(delta * alpha) / (alpha - 1.0)
    return max(0.0, float(np.min(candidates)))
