"""The Renyi curve of the Skellam mechanism: Agarwal, Kairouz, Liu 2021, "The Skellam Mechanism for Differentially
Private Federated Learning", Theorem 3.5 with Corollary 3.6.

For integer orders alpha > 1, integer vectors with L1 sensitivity D1 and L2 sensitivity D2, and Skellam noise of
variance mu in every coordinate:

    eps(alpha) = alpha D2^2 / (2 mu) + min{ ((2 alpha - 1) D2^2 + 6 D1) / (4 mu^2), 3 D1 / (2 mu) }.

The noise is closed under sums: if n surviving devices add noise of variance mu_l each, the sum has variance n mu_l
exactly, whichever devices survive.

If the variance is 4 or more, the accountant also uses a Gaussian that dominates the release
(`privacy.accounting.skellam_as_gaussian`), which is usually tighter. The curve here is needed for less noise, and as
the Renyi curve of fixed-size samples.
"""

from __future__ import annotations

import numpy as np

from fedsketch.privacy.accounting.renyi import ORDERS, Curve


def curve(
    variance: float, l2_sensitivity: float, l1_sensitivity: float, orders: Curve = ORDERS
) -> Curve:
    """Return the curve. It is infinite at fractional orders, because the theorem is for integers."""
    if variance == 0.0:
        return np.full(orders.shape, np.inf)
    squared = l2_sensitivity**2
    # Corollary 3.6: the divergence of the Gaussian, plus the price of being discrete.
    price = np.minimum(
        ((2.0 * orders - 1.0) * squared + 6.0 * l1_sensitivity) / (4.0 * variance**2),
        3.0 * l1_sensitivity / (2.0 * variance),
    )
    return np.where(
        (np.round(orders) == orders) & (orders >= 2.0),
        orders * squared / (2.0 * variance) + price,
        np.inf,
    )
