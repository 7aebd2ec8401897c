"""L2-CSGM (coordinate-sampled Gaussian mechanism): the Renyi curve of the Gaussian mechanism with secret sampling of
coordinates.

The bound is Theorem 4.1 of Chen, Isik, Kairouz, No, Oh, Xu 2024, "Improved Communication-Privacy Trade-offs in L2 Mean
Estimation under Streaming Differential Privacy", with its slips corrected. A unit's vector has L2 norm at most D2 and
entries of at most Dinf, g is the sampling rate of coordinates, x = Dinf^2 / (2 sigma^2) and alpha is an integer:

    eps(alpha) = (D2^2 / Dinf^2) / (alpha - 1)
                 * log(1 + sum_{l=2..alpha} binom(alpha, l) (1-g)^(alpha-l) g^l (e^(l(l-1)x) - 1)).

Why it holds: every coordinate is a sampled Gaussian mechanism with the absolute value of that coordinate as its
sensitivity. The masks are independent, so the divergences add up. As a function of y, the square of the coordinate,
the logarithm is a cumulant function: it is convex, and 0 at 0. So it is at most (y / Dinf^2) times its value at
Dinf^2. The squares add up to at most D2^2.

The accountant uses no privacy loss distribution here, because no vector is the worst one for all epsilons. For a given
L2 norm, the total variation (epsilon 0) is larger for a vector that is spread over many coordinates, and the
divergence at a large epsilon is larger for a concentrated vector (a test shows the crossing). Which vector is the
worst at a given epsilon is not known.

The bound holds for add/remove and zero-out adjacency in both directions, because for each coordinate the other
direction is never larger (`privacy.accounting.poisson`). It holds against those who see the sum and never a mask: the
server must be trusted.
"""

from __future__ import annotations

import numpy as np

from fedsketch.privacy.accounting import poisson
from fedsketch.privacy.accounting.renyi import LARGEST_SAMPLED_ORDER, ORDERS, Curve

_LARGEST_DRAWN_ORDER = 256
"""Largest order if clients are drawn as well. Every integer order up to it is computed, from all smaller ones."""


def curve(sigma: float, rate: float, l2: float, linf: float, orders: Curve = ORDERS) -> Curve:
    if rate == 0.0:
        return np.zeros(orders.shape)
    if sigma == 0.0:
        return np.full(orders.shape, np.inf)
    unsampled = orders * l2**2 / (2.0 * sigma**2)
    if rate == 1.0:
        return unsampled
    linf = min(linf, l2)  # no coordinate is larger than the whole vector
    whole = (np.round(orders) == orders) & (orders <= LARGEST_SAMPLED_ORDER)
    powers = np.arange(int(orders[whole].max()) + 1.0)
    log_moments = powers * (powers - 1.0) * linf**2 / (2.0 * sigma**2)
    result = unsampled.copy()  # sampling never increases the divergence
    sampled = poisson.sampled_log_moments(orders[whole], rate, log_moments)
    result[whole] = np.minimum(unsampled[whole], (l2 / linf) ** 2 * sampled / (orders[whole] - 1.0))
    return result


def drawn_curve(rate: float, sigma: float, mask_rate: float, l2: float, linf: float) -> Curve:
    """Return the curve if, in addition, each client is drawn independently and secretly with probability `rate`."""
    orders = np.arange(2.0, _LARGEST_DRAWN_ORDER + 1.0)
    moments = np.concatenate([[0.0, 0.0], curve(sigma, mask_rate, l2, linf, orders)])
    return poisson.integer_curve(rate, curve(sigma, mask_rate, l2, linf), moments)
