"""L2-CSGM: the Renyi curve of the Gaussian mechanism with secret sampling of coordinates.

Chen, Isik, Kairouz, No, Oh, Xu 2024, "Improved Communication-Privacy Trade-offs in L2 Mean Estimation under Streaming
Differential Privacy", Theorem 4.1, with its slips corrected: with x = Dinf^2 / (2 sigma^2) and integer alpha

    eps(alpha) = (D2^2 / Dinf^2) / (alpha - 1) * log(1 + sum_{l=2..alpha} binom(alpha, l) (1-g)^(alpha-l) g^l
    (e^(l(l-1)x) - 1)).

Why: every coordinate is a sampled Gaussian mechanism whose sensitivity is that coordinate's size, and the masks are
independent, so the divergences add. As a function of y = size^2 the logarithm is a cumulant function, convex and 0 at
0, so it is at most (y / Dinf^2) times its value at Dinf^2; the sizes squared add up to at most D2^2.

No loss distribution is booked, because no vector is the worst at all epsilons: for a given L2 norm the total variation
(epsilon 0) is larger for a vector that is spread over many coordinates, the divergence at a large epsilon for one that
is concentrated (a test shows the crossing). Which vector is the worst at a given epsilon is not known here.

Holds for add/remove and zero-out adjacency, in both directions (a coordinate's other one is never larger:
`privacy.accounting.poisson`), against those who see the sum and never a mask: the server is trusted.
"""

from __future__ import annotations

import numpy as np

from fedsketch.privacy.accounting import poisson
from fedsketch.privacy.accounting.renyi import LARGEST_SAMPLED_ORDER, ORDERS, Curve

_LARGEST_DRAWN_ORDER = 256
"""Of masks and drawn clients together: all orders up to it are computed, for each of which all smaller ones count."""


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
    result = unsampled.copy()  # sampling never hurts
    sampled = poisson.sampled_log_moments(orders[whole], rate, log_moments)
    result[whole] = np.minimum(unsampled[whole], (l2 / linf) ** 2 * sampled / (orders[whole] - 1.0))
    return result


def drawn_curve(rate: float, sigma: float, mask_rate: float, l2: float, linf: float) -> Curve:
    """For clients that are drawn with probability `rate` besides, each on its own, by a secret draw."""
    orders = np.arange(2.0, _LARGEST_DRAWN_ORDER + 1.0)
    moments = np.concatenate([[0.0, 0.0], curve(sigma, mask_rate, l2, linf, orders)])
    return poisson.integer_curve(rate, curve(sigma, mask_rate, l2, linf), moments)
