"""The sketched Gaussian mechanism with R secret: Li, Chen, Banerjee 2025, "Sketched Gaussian Mechanism for Private
Federated Learning".

y = R S + noise, with S the sum of at most n updates clipped to C = 1, R of b rows with independent N(0, 1/b) entries
and noise N(0, z^2) per coordinate. Averaged over R, y is N(0, v I_b) with v = z^2 + |S|^2 / b: it depends on |S| alone.
Removing one client moves |S| from r + 1 to r at most, r <= n - 1, and the Renyi divergence between the two laws is that
of centred Gaussians,

    D_alpha(N(0, u) || N(0, v)) = log(v/u)/2 + log(v / (alpha v + (1 - alpha) u)) / (2 (alpha - 1))      per coordinate

(Gil, Alajaji, Linder 2013), infinite where alpha v + (1 - alpha) u <= 0. This is the exact divergence that the paper
bounds; the loss falls like 1/sqrt(b).

Against whom: only those who see y and neither R **nor any model made from y by R**. The desketched R^T y has mean S, so
that a distinguisher who looks along one direction of a model update faces about the plain Gaussian mechanism, without
ever knowing R. The accountant therefore accepts this reading for `Adversary.EAVESDROPPER` only; for everyone else R is
public and the sketch is clipped.

For one round only. The second round's S is computed from the model that R^T y of the first has made: given the y that
was seen, it still depends on the first R, and a sum that reacts to the model shows along which direction it has moved.
A fresh R in every round does not mend that, because the law of the first R given y and the next S is no longer the one
that was averaged over. The accountant refuses a second release.
"""

from __future__ import annotations

import math

import numpy as np

from fedsketch.privacy.accounting.renyi import ORDERS, Curve


def centred_gaussians(u: float, v: float, orders: Curve = ORDERS) -> Curve:
    """D_alpha(N(0, u) || N(0, v)) for one coordinate and variances u, v."""
    ratio = u / v
    mixed = orders + (1.0 - orders) * ratio
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = -0.5 * math.log(ratio) - np.log(mixed) / (2.0 * (orders - 1.0))
    return np.where(mixed > 0.0, divergence, np.inf)


def secret_curve(noise_multiplier: float, rows: int, clients: int, orders: Curve = ORDERS) -> Curve:
    """The larger of both directions, at the worst norm of the sum of the other clients."""
    if noise_multiplier == 0.0:
        return np.full(orders.shape, np.inf)
    floor = noise_multiplier**2 * rows
    # (floor + (r + 1)^2) / (floor + r^2) is largest where r^2 + r = floor, or at the end of the range before it.
    r = min(clients - 1.0, (math.sqrt(1.0 + 4.0 * floor) - 1.0) / 2.0)
    with_unit, without = floor + (r + 1.0) ** 2, floor + r**2
    return rows * np.maximum(
        centred_gaussians(with_unit, without, orders), centred_gaussians(without, with_unit, orders)
    )
