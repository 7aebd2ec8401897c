"""Renyi curves of mechanisms under Poisson sampling, for add/remove or zero-out adjacency.

P is the output distribution of the unsampled mechanism with the unit, Q without it, r = P/Q their likelihood ratio and
q the sampling rate. Then

    exp((alpha - 1) D_alpha((1 - q) Q + q P || Q)) = sum_l binom(alpha, l) (1 - q)^(alpha - l) q^l E_Q[r^l]
    (integer alpha)

and E_Q[r^l] = exp((l - 1) D_l(P || Q)): Mironov, Talwar, Zhang 2019, Section 3.3.

The other direction, D_alpha(Q || (1 - q) Q + q P), is never larger if the noise is symmetric, as Gaussian and Skellam
noise are (their Theorem 5). The proof needs no densities, so it also holds for integers. Pair x with its mirror image,
where the ratio is 1/r. With a = 1 - q + q r and u = r / (r (1 - q) + q) the claim becomes h(a)/(a - 1) >= h(u)/(u - 1)
for h(t) = t^alpha - t^(1 - alpha). It holds because h is convex on t >= 1, and a >= u >= 1.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fedsketch.privacy.accounting.renyi import IS_INTEGER, LARGEST_SAMPLED_ORDER, ORDERS, Curve


def missed(rate: float, population: int, smallest: int) -> float:
    """Return the probability that a unit is drawn and the adversary can see that, if cohorts of fewer than `smallest`
    units are replaced by noise alone.

    Each of n = `population` units is drawn with probability q. Let B be the other units that are drawn. Zero-out
    adjacency compares:

    - |B| >= smallest: the usual Poisson pair.
    - |B| <= smallest - 2: noise alone on both sides.
    - |B| = smallest - 1: if the unit is not drawn, noise alone on both sides. If it is drawn, the sum with the unit
      against the sum without it. Only this last case is not covered by amplification. Its probability is
      q binom(n - 1, smallest - 1) q^(smallest - 1) (1 - q)^(n - smallest).

    With `smallest` = 1 the probability is 0, because an empty sum is noise alone anyway. `population` counts the units
    that answer if they are drawn.
    """
    if smallest <= 1 or smallest > population or rate == 0.0:
        return 0.0
    if rate == 1.0:
        return float(smallest == population)
    ways = math.comb(population - 1, smallest - 1)
    return math.exp(
        math.log(ways) + smallest * math.log(rate) + (population - smallest) * math.log1p(-rate)
    )


@lru_cache(maxsize=4)
def log_binomials(orders: tuple[int, ...]) -> Curve:
    """Return log binom(alpha, l) for each alpha and for l = 0..max; minus infinity for l > alpha."""
    top = max(orders)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, top + 1.0)))])
    alpha = np.array(orders)[:, None]
    chosen = np.arange(top + 1)[None, :]
    rest = np.clip(alpha - chosen, 0, None)
    table = log_factorial[alpha] - log_factorial[chosen] - log_factorial[rest]
    return np.where(chosen <= alpha, table, -np.inf)


def sampled_log_moments(orders: Curve, rate: float, log_moments: Curve) -> Curve:
    """Return (alpha - 1) D_alpha of the sampled mechanism at integer orders.

    `log_moments[l]` is (l - 1) D_l of the unsampled mechanism for l = 0..max(orders); entries 0 and 1 are 0. It is
    computed as log(1 + sum_{l >= 2} ... (E[r^l] - 1)), so that nothing cancels if the sum is tiny.
    """
    alpha = orders.astype(np.int64)
    chosen = np.arange(int(alpha.max()) + 1)
    rest = np.clip(alpha[:, None] - chosen[None, :], 0, None)
    with np.errstate(divide="ignore", over="ignore"):
        log_excess = np.where(
            log_moments > 1.0,
            log_moments + np.log1p(-np.exp(-log_moments)),
            np.log(np.expm1(np.minimum(log_moments, 1.0))),
        )
    log_excess[:2] = -np.inf
    terms = log_binomials(tuple(alpha.tolist())) + rest * np.log1p(-rate) + chosen * np.log(rate)
    terms = terms + log_excess
    peak = terms.max(axis=1)
    with np.errstate(invalid="ignore"):
        log_sum = peak + np.log(np.sum(np.exp(terms - peak[:, None]), axis=1))
    log_sum[np.isneginf(peak)] = -np.inf
    log_sum[np.isposinf(peak)] = np.inf
    return np.logaddexp(0.0, log_sum)


def _gaussian_fractional(orders: Curve, rate: float, noise_multiplier: float) -> Curve:
    """Return log E_Q[(1 - q + q r)^alpha] by the trapezoidal rule, for orders between 1 and 11.

    The integrand is analytic in a strip of half width pi z^2, so the rule converges exponentially: if a step is at
    most z/16 and at most z^2/2, the relative error is below 1e-12.
    """
    variance = noise_multiplier**2
    step = min(noise_multiplier / 16.0, variance / 2.0)
    x = np.arange(-14.0 * noise_multiplier, 14.0 * noise_multiplier + orders.max(), step)
    log_density = -(x**2) / (2.0 * variance) - np.log(noise_multiplier * np.sqrt(2.0 * np.pi))
    log_ratio = (2.0 * x - 1.0) / (2.0 * variance)
    log_mixture = np.logaddexp(np.log1p(-rate), np.log(rate) + log_ratio)
    exponent = log_density[None, :] + orders[:, None] * log_mixture[None, :]
    peak = exponent.max(axis=1)
    return peak + np.log(step * np.sum(np.exp(exponent - peak[:, None]), axis=1))


def gaussian(rate: float, noise_multiplier: float, orders: Curve = ORDERS) -> Curve:
    """Return the curve of the sampled Gaussian mechanism. The noise multiplier is the noise divided by the
    sensitivity."""
    if rate == 0.0:
        return np.zeros(orders.shape)
    if noise_multiplier == 0.0:
        return np.full(orders.shape, np.inf)
    plain = orders / (2.0 * noise_multiplier**2)
    if rate == 1.0:
        return plain
    curve = np.full(orders.shape, np.inf)
    whole = (np.round(orders) == orders) & (orders <= LARGEST_SAMPLED_ORDER)
    powers = np.arange(int(orders[whole].max()) + 1) if whole.any() else np.arange(1)
    if whole.any():
        log_moments = powers * (powers - 1.0) / (2.0 * noise_multiplier**2)
        curve[whole] = sampled_log_moments(orders[whole], rate, log_moments) / (orders[whole] - 1.0)
    fractional = (np.round(orders) != orders) & (orders < 11.0)
    # With less noise the grid would be long, and fractional orders would not help.
    if fractional.any() and noise_multiplier >= 0.05:
        log_moment = _gaussian_fractional(orders[fractional], rate, noise_multiplier)
        curve[fractional] = np.maximum(log_moment, 0.0) / (orders[fractional] - 1.0)
    # Sampling never increases the divergence (quasi-convexity). This also fills the orders that were not computed.
    return np.minimum(curve, plain)


def symmetric_integer_curve(rate: float, unsampled: Curve, moments: Curve) -> Curve:
    """Return the curve of a sampled mechanism with symmetric noise that is known at integer orders only: `moments[l]`
    bounds D_l(P || Q) for l = 0, 1, 2, ..."""
    if rate == 0.0:
        return np.zeros(ORDERS.shape)
    if rate == 1.0:
        return unsampled
    whole = IS_INTEGER & (len(moments) > ORDERS)
    log_moments = np.concatenate([[0.0, 0.0], np.arange(1.0, len(moments) - 1.0) * moments[2:]])
    curve = np.full(ORDERS.shape, np.inf)
    curve[whole] = sampled_log_moments(ORDERS[whole], rate, log_moments) / (ORDERS[whole] - 1.0)
    return np.minimum(curve, unsampled)


def integer_curve(rate: float, unsampled: Curve, moments: Curve) -> Curve:
    """Return the same for any mechanism, symmetric or not, if its `unsampled` curve bounds both directions. The result
    is the larger of the bounds for the two directions.

    The other direction is E_Q[F(r)] with F(t) = (1 - q + q t)^(1 - alpha). F(1) = 1, and F''(t) =
    alpha (alpha - 1) q^2 (1 - q + q t)^(-alpha - 1). For t >= 1 this is at most alpha (alpha - 1) q^2. For t < 1 it is
    at most 1 + k (1 - t) times as much, with k = (1 - q)^(-alpha - 1) - 1, because F'' is convex. E_Q[r] = 1, so by
    Taylor's formula with the integral remainder

        E_Q[F(r)] <= 1 + binom(alpha, 2) q^2 (E_Q[(r - 1)^2] + k/3 E_Q[max(1 - r, 0)^3])
                  <= 1 + binom(alpha, 2) q^2 (1 + k/3) (exp(D_2(P || Q)) - 1).
    """
    there = symmetric_integer_curve(rate, unsampled, moments)
    if rate in (0.0, 1.0):
        return there
    log_chi = moments[2] + np.log(-np.expm1(-moments[2])) if moments[2] > 0.0 else -np.inf
    log_share = np.log(ORDERS * (ORDERS - 1.0) / 2.0) + 2.0 * np.log(rate) + log_chi
    # log(1 + k/3). The power itself would overflow at large orders.
    log_rest = np.logaddexp(np.log(2.0), -(ORDERS + 1.0) * np.log1p(-rate)) - np.log(3.0)
    back = np.logaddexp(0.0, log_share + log_rest) / (ORDERS - 1.0)
    return np.minimum(np.maximum(there, back), unsampled)
