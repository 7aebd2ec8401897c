"""The sketched Gaussian mechanism with R secret: Li, Chen, Banerjee 2025, "Sketched Gaussian Mechanism for Private
Federated Learning".

The mechanism releases y = R S + noise. S is the sum of at most n updates clipped to C = 1, R has b rows with
independent N(0, 1/b) entries, and the noise is N(0, z^2) in every coordinate. Averaged over R, y is N(0, v I_b) with v
= z^2 + |S|^2 / b, so it depends only on |S|. Removing one client moves |S| at most from r + 1 to r, with r <= n - 1.
The Renyi divergence between the two distributions is that of centred Gaussians,

    D_alpha(N(0, u) || N(0, v)) = log(v/u)/2 + log(v / (alpha v + (1 - alpha) u)) / (2 (alpha - 1))      per coordinate

(Gil, Alajaji, Linder 2013), infinite if alpha v + (1 - alpha) u <= 0. The paper bounds this divergence; here it is
exact. The privacy loss falls like 1/sqrt(b).

There is only one release, so nothing has to be composed, and epsilon is that of the pair itself: a difference of two
chi-square probabilities (`dominating_pairs.VariancePair`). By the Renyi curve it would be about a tenth larger.

Against whom: only those who see y, but neither R **nor any model made from y with R**. The desketched R^T y has mean
S. So a distinguisher who looks along one direction of a model update faces about the plain Gaussian mechanism, without
ever knowing R. The accountant therefore accepts a secret R only for `Adversary.EAVESDROPPER`. For everyone else R
counts as public, and the sketch must be clipped.

For one round only: S of the second round is computed from the model that R^T y of the first round made. Given the
observed y it still depends on the first R, and a sum that reacts to the model reveals in which direction the model
moved. A fresh R in every round does not help, because the distribution of the first R given y and the next S is no
longer the one that was averaged over. The accountant refuses a second release.
"""

from __future__ import annotations

import math

import numpy as np

from fedsketch.privacy.accounting.renyi import ORDERS, Curve


def centred_gaussians(u: float, v: float, orders: Curve = ORDERS) -> Curve:
    """Return D_alpha(N(0, u) || N(0, v)) for one coordinate and variances u, v."""
    ratio = u / v
    mixed = orders + (1.0 - orders) * ratio
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = -0.5 * math.log(ratio) - np.log(mixed) / (2.0 * (orders - 1.0))
    return np.where(mixed > 0.0, divergence, np.inf)


def _worst_squares(noise_multiplier: float, rows: int, clients: int) -> tuple[float, float]:
    """Return b v with and without the unit, for the norm of the other clients' sum at which their ratio is largest."""
    floor = noise_multiplier**2 * rows
    # (floor + (r + 1)^2) / (floor + r^2) is largest at r^2 + r = floor, or at the largest r if that is smaller.
    r = min(clients - 1.0, (math.sqrt(1.0 + 4.0 * floor) - 1.0) / 2.0)
    return floor + (r + 1.0) ** 2, floor + r**2


def worst_ratio(noise_multiplier: float, rows: int, clients: int) -> float:
    """Return the largest ratio of the variances of y with and without one client."""
    more, less = _worst_squares(noise_multiplier, rows, clients)
    return more / less


def secret_curve(noise_multiplier: float, rows: int, clients: int, orders: Curve = ORDERS) -> Curve:
    """Return the larger of both directions, for the worst norm of the other clients' sum."""
    if noise_multiplier == 0.0:
        return np.full(orders.shape, np.inf)
    with_unit, without = _worst_squares(noise_multiplier, rows, clients)
    return rows * np.maximum(
        centred_gaussians(with_unit, without, orders), centred_gaussians(without, with_unit, orders)
    )
