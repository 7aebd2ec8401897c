"""Renyi curves of mechanisms under Poisson sampling, add/remove (or zero-out) adjacency.

With likelihood ratio r = P/Q of the unsampled mechanism (unit in / unit out) and sampling rate q,

    exp((alpha - 1) D_alpha((1 - q) Q + q P || Q)) = sum_l binom(alpha, l) (1 - q)^(alpha - l) q^l E_Q[r^l]
    (integer alpha)

and E_Q[r^l] = exp((l - 1) D_l(P || Q)): Mironov, Talwar, Zhang 2019, Section 3.3. The other direction, D_alpha(Q || (1
- q) Q + q P), is never larger when the noise is symmetric (their Theorem 5), which Gaussian and Skellam noise are. Its
proof needs no densities, so it holds for integers as well: pair x with its mirror image, where the ratio is 1/r; with a
= 1 - q + q r and u = r / (r (1 - q) + q) the claim becomes h(a)/(a - 1) >= h(u)/(u - 1) for h(t) = t^alpha - t^(1 -
alpha), which is convex on t >= 1, and a >= u >= 1.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fedsketch.privacy.accounting.renyi import IS_INTEGER, LARGEST_SAMPLED_ORDER, ORDERS, Curve


def missed(rate: float, population: int, smallest: int) -> float:
    """The probability that a unit is drawn and its draw shows, where cohorts of fewer than `smallest` pass as noise
    alone.

    Of `population` units each is drawn with probability q. Given the others that are drawn, B, zero-out adjacency
    compares: for
    |B| >= smallest the Poisson pair; for |B| <= smallest - 2 noise alone on both sides; for |B| = smallest - 1 noise alone if the
    unit is not drawn, again on both sides, and if it is, the sum with the unit against the sum without it: this case alone is not
    covered by amplification. Its probability is q binom(n - 1, smallest - 1) q^(smallest - 1) (1 - q)^(n - smallest). With `smallest`
    of one nothing is missed: an empty sum is noise alone. `population` counts the units that answer if drawn.
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
    """log binom(alpha, l) for each alpha and l = 0..max; minus infinity for l > alpha."""
    top = max(orders)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, top + 1.0)))])
    alpha = np.array(orders)[:, None]
    chosen = np.arange(top + 1)[None, :]
    rest = np.clip(alpha - chosen, 0, None)
    table = log_factorial[alpha] - log_factorial[chosen] - log_factorial[rest]
    return np.where(chosen <= alpha, table, -np.inf)


def sampled_log_moments(orders: Curve, rate: float, log_moments: Curve) -> Curve:
    """(alpha - 1) D_alpha of the sampled mechanism at integer orders.

    `log_moments[l]` = (l - 1) D_l of the unsampled one for l = 0..max(orders), with entries 0 and 1 equal to 0. In the
    form log(1 + sum_{l >= 2} ... (E[r^l] - 1)), so that nothing cancels when the sum is tiny.
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
    """log E_Q[(1 - q + q r)^alpha] by the trapezoidal rule, for orders between 1 and 11.

    The integrand is analytic in a strip of half width pi z^2, so the rule converges exponentially: with steps of at
    most z/16 and z^2/2 the error is below 1e-12 of the value.
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
    """The sampled Gaussian mechanism; the noise multiplier is over the sensitivity."""
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
    # With so little noise the grid would be long and the fractional orders useless.
    if fractional.any() and noise_multiplier >= 0.05:
        log_moment = _gaussian_fractional(orders[fractional], rate, noise_multiplier)
        curve[fractional] = np.maximum(log_moment, 0.0) / (orders[fractional] - 1.0)
    # Sampling never hurts (quasi-convexity); this also fills the orders above the largest sampled one.
    return np.minimum(curve, plain)


def symmetric_integer_curve(rate: float, unsampled: Curve, moments: Curve) -> Curve:
    """A mechanism with symmetric noise known at integer orders only: `moments[l]` bounds D_l(P || Q) for l = 0, 1, 2,
    ..."""
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
    """The same for any mechanism whose `unsampled` curve bounds both directions: the larger of the two, each by itself.

    The other direction is E_Q[F(r)], F(t) = (1 - q + q t)^(1 - alpha). F(1) = 1, and F''(t), which is alpha (alpha - 1)
    q^2 (1 - q + q t)^(-alpha - 1), is at most alpha (alpha - 1) q^2 where t >= 1; where t < 1 it is at most 1 + k (1 -
    t) times as much, with k = (1 - q)^(-alpha - 1) - 1, because it is convex. E_Q[r] = 1, so by Taylor's formula with
    the integral as its rest

        E_Q[F(r)] <= 1 + binom(alpha, 2) q^2 (E_Q[(r - 1)^2] + k/3 E_Q[max(1 - r, 0)^3])
                  <= 1 + binom(alpha, 2) q^2 (1 + k/3) (exp(D_2(P || Q)) - 1).
    """
    there = symmetric_integer_curve(rate, unsampled, moments)
    if rate in (0.0, 1.0):
        return there
    log_chi = moments[2] + np.log(-np.expm1(-moments[2])) if moments[2] > 0.0 else -np.inf
    log_share = np.log(ORDERS * (ORDERS - 1.0) / 2.0) + 2.0 * np.log(rate) + log_chi
    # (1 + k/3), in logarithms: its power overflows at large orders.
    log_rest = np.logaddexp(np.log(2.0), -(ORDERS + 1.0) * np.log1p(-rate)) - np.log(3.0)
    back = np.logaddexp(0.0, log_share + log_rest) / (ORDERS - 1.0)
    return np.minimum(np.maximum(there, back), unsampled)
