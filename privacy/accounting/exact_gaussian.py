"""The exact (epsilon, delta) curve of Gaussian releases without sampling.

The adaptive composition of Gaussian mechanisms with noise multipliers z_i is exactly one Gaussian mechanism with mu^2
= sum 1/z_i^2 (Dong, Roth, Su 2022, Corollary 3.3). For it,

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

(Balle and Wang 2018, Theorem 8). Both are equalities, so nothing is lost.
"""

from __future__ import annotations

import math


def log_normal_cdf(x: float) -> float:
    """Return log Phi(x). Far in the lower tail it uses the asymptotic series, which is exact to double precision
    there."""
    if x > -30.0:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2.0)))
    inverse = 1.0 / (x * x)
    series = 1.0 - inverse * (1.0 - 3.0 * inverse * (1.0 - 5.0 * inverse * (1.0 - 7.0 * inverse)))
    return -0.5 * x * x - math.log(-x * math.sqrt(2.0 * math.pi)) + math.log(series)


def log_delta(epsilon: float, mu: float) -> float:
    first = log_normal_cdf(mu / 2.0 - epsilon / mu)
    second = epsilon + log_normal_cdf(-mu / 2.0 - epsilon / mu)
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf


def epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of a Gaussian release with noise multiplier 1/mu, never below the true value."""
    if mu == 0.0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    target = math.log(delta)
    if log_delta(0.0, mu) <= target:
        return 0.0
    low, high = 0.0, 1.0
    while log_delta(high, mu) > target:
        low, high = high, 2.0 * high
    while high - low > 1e-13 * max(1.0, high):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if log_delta(middle, mu) > target else (low, middle)
    return high
