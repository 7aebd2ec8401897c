"""The Skellam mechanism's Renyi curve: Agarwal, Kairouz, Liu 2021, "The Skellam Mechanism for Differentially Private
Federated Learning", Theorem 3.5 with Corollary 3.6.

For integer order alpha > 1, an integer vector with sensitivities D1 and D2, and Skellam noise of variance mu per
coordinate:

    eps(alpha) = alpha D2^2 / (2 mu) + min{ ((2 alpha - 1) D2^2 + 6 D1) / (4 mu^2), 3 D1 / (2 mu) }.

The noise is closed under sums: n devices with variance mu_l each give the sum exactly variance n mu_l, for every
survivor set.

Where the variance is 4 or more the accountant books a Gaussian that dominates
(`privacy.accounting.skellam_as_gaussian`), which is sharper: this curve serves where there is less noise, and beside
the loss distribution of fixed-size samples.
"""

from __future__ import annotations

import numpy as np

from fedsketch.privacy.accounting.renyi import ORDERS, Curve


def curve(
    variance: float, l2_sensitivity: float, l1_sensitivity: float, orders: Curve = ORDERS
) -> Curve:
    """Infinity at fractional orders: the theorem is for integers."""
    if variance == 0.0:
        return np.full(orders.shape, np.inf)
    squared = l2_sensitivity**2
    # Corollary 3.6: the Gaussian's divergence plus the price of being discrete.
    price = np.minimum(
        ((2.0 * orders - 1.0) * squared + 6.0 * l1_sensitivity) / (4.0 * variance**2),
        3.0 * l1_sensitivity / (2.0 * variance),
    )
    return np.where(
        (np.round(orders) == orders) & (orders >= 2.0),
        orders * squared / (2.0 * variance) + price,
        np.inf,
    )
