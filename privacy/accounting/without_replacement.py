"""Renyi curves of the Gaussian mechanism on a fixed-size sample drawn without replacement.

Which adjacency allows which theorem (q = size/population, clip C, z = noise divided by C):

- REPLACE_ONE: Wang, Balle, Kasiviswanathan 2019, Theorem 27, with the replace-one sensitivity 2C. In dp-accounting
  this is SampledWithoutReplacementDpEvent. Its RDP accountant expects the noise divided by the REPLACE-ONE
  sensitivity, so it must be given z/2, not z.
- ADD_OR_REMOVE of unit i, with a fixed sample size: draw size - 1 other units B and one more other unit j. With unit i
  in the data, the sample is B + j with probability 1 - q and B + i with probability q. Without unit i it is B + j.
  Given (B, j) the pair is (1 - q) N(x_j) + q N(x_i) against N(x_j) with |x_i - x_j| <= 2C. This is the Poisson pair
  with rate q and noise z/2, in both directions. Joint quasi-convexity over (B, j) gives the bound for the mixture.
- ZERO_OUT: in the same way the pair is (1 - q) r + q p against (1 - q) r + q p' with r = N(x_j), p = N(x_i), p' =
  N(0); see `zero_out`. The plain Poisson formula is NOT a bound here, because r is not p'. For noise other than
  Gaussian: setting a unit to zero is one particular replacement, so the replace-one curve (Theorem 9) is valid. The
  unsampled zero-out curve is valid too.

The last two bounds are derived here, not taken from a paper. They are tested against brute force.
"""

from __future__ import annotations

import numpy as np

from fedsketch.privacy.accounting.poisson import log_binomials
from fedsketch.privacy.accounting.renyi import LARGEST_SAMPLED_ORDER, ORDERS, Curve

LARGEST_EXACT_ORDER = 256
"""Above this order dp-accounting, and therefore this file, uses the simpler terms of Theorem 9."""


SMALLEST_NOISE = 0.25
"""With less noise the moments are too large to be useful and their grid is long, so the unsampled curve is used."""


def _log_moments(noise_multiplier: float, largest: int, base: float) -> Curve:
    """Return log of the integral of |p - p'|^k / r^(k-1) for k = 0..largest, with p = N(1), p' = N(0), r = N(base),
    all with standard deviation z.

    Even k are computed by the trapezoidal rule. The integrand is positive, so nothing cancels, unlike in the
    alternating sum of Theorem 27 (for base 0 these integrals are its forward differences). Odd k are bounded by their
    neighbours with the Cauchy-Schwarz inequality.
    """
    k = np.arange(0, largest + 2, 2)
    z = noise_multiplier
    step = z / 32.0
    moments = np.zeros(largest + 2 + largest % 2)
    for start in range(0, len(k), 16):
        some = k[start : start + 16]
        # p^k / r^(k-1) peaks at k - (k - 1) base.
        x = np.arange(-14.0 * z - 1.0, (1.0 - base) * some.max() + 14.0 * z + 2.0, step)
        log_base = -((x - base) ** 2) / (2.0 * z**2) - np.log(z * np.sqrt(2.0 * np.pi))
        log_zero = base * (base - 2.0 * x) / (2.0 * z**2)  # log(p' / r)
        log_ratio = (2.0 * x - 1.0) / (2.0 * z**2)
        with np.errstate(divide="ignore"):
            log_gap = np.where(
                log_ratio > 0.0,
                log_ratio + np.log(-np.expm1(-np.abs(log_ratio))),
                np.log(-np.expm1(-np.abs(log_ratio))),
            )
        log_difference = np.maximum(log_zero + log_gap, -1e300)
        exponent = log_base[None, :] + some[:, None] * log_difference[None, :]
        peak = exponent.max(axis=1)
        moments[some] = peak + np.log(step * np.exp(exponent - peak[:, None]).sum(axis=1))
    moments[1:-1:2] = 0.5 * (moments[0:-2:2] + moments[2::2])
    return moments[: largest + 1]


def _theorem_9(rate: float, divergence: Curve) -> Curve:
    """Return the log terms of Theorem 9 of Wang et al. for j = 0, 1, ...; `divergence[j]` bounds the unsampled
    divergence of order j."""
    j = np.arange(len(divergence))
    terms = np.log(2.0) + (j - 1.0) * np.where(j < 2, 0.0, divergence)
    terms[2] = min(terms[2], np.log(4.0) + np.log(np.expm1(min(divergence[2], 700.0))))
    return terms + j * np.log(rate)


def _curve_from_terms(orders: Curve, terms: Curve, plain_terms: Curve) -> Curve:
    """Return log(1 + sum_{j=2..alpha} binom(alpha, j) e^term_j) / (alpha - 1), interpolated between integer orders."""
    top = len(terms) - 1
    used = orders <= top
    whole = np.unique(np.concatenate([np.floor(orders[used]), np.ceil(orders[used])])).astype(int)
    whole = whole[whole >= 2]
    moment = np.zeros(top + 1)
    exponents = log_binomials(tuple(whole.tolist()))[:, 2:] + np.where(
        whole[:, None] <= LARGEST_EXACT_ORDER,
        terms[None, 2 : whole[-1] + 1],
        plain_terms[None, 2 : whole[-1] + 1],
    )
    moment[whole] = np.logaddexp(0.0, np.logaddexp.reduce(exponents, axis=1))
    low, high = np.floor(orders[used]).astype(int), np.ceil(orders[used]).astype(int)
    weight = orders[used] - low  # the cumulant function is convex: Corollary 10 of Wang et al.
    curve = np.full(orders.shape, np.inf)
    curve[used] = ((1.0 - weight) * moment[low] + weight * moment[high]) / (orders[used] - 1.0)
    return curve


def gaussian(rate: float, noise_multiplier: float, orders: Curve = ORDERS) -> Curve:
    """Return Theorem 27 of Wang et al. The noise multiplier is the noise divided by the replace-one sensitivity
    (2C)."""
    if noise_multiplier == 0.0:
        return np.full(orders.shape, np.inf)
    unsampled = orders / (2.0 * noise_multiplier**2)
    if rate == 1.0 or noise_multiplier < SMALLEST_NOISE:
        return unsampled
    top = int(min(np.ceil(orders.max()), LARGEST_SAMPLED_ORDER))
    plain = _theorem_9(rate, np.arange(top + 1.0) / (2.0 * noise_multiplier**2))
    exact = min(top, LARGEST_EXACT_ORDER)
    j = np.arange(3, exact + 1)
    sharper = np.log(4.0) + _log_moments(noise_multiplier, exact, base=0.0)[3:]
    terms = plain.copy()
    terms[3 : exact + 1] = np.minimum(plain[3 : exact + 1], sharper + j * np.log(rate))
    return np.minimum(_curve_from_terms(orders, terms, plain), unsampled)


def zero_out(rate: float, noise_multiplier: float, orders: Curve = ORDERS) -> Curve:
    """Return the Gaussian mechanism under zero-out adjacency. The noise multiplier is the noise divided by C.

    Let Q = (1 - q) r + q p' and alpha an integer. Expanding (Q + q (p - p'))^alpha / Q^(alpha-1) and using the
    convexity of 1/Q^(k-1) gives

        exp((alpha - 1) D_alpha) <= 1 + sum_{k=2..alpha} binom(alpha, k) q^k ((1 - q) T_k(r) + q T_k(p')),

    where T_k(r) = integral of |p - p'|^k / r^(k-1). The term k = 1 vanishes. Swapping p and p' gives the same bound
    for the other direction.

    The worst case: for even k and centres x of p and y of r, T_k = e^(k(k-1)|y|^2/2z^2) E[(w M - 1)^k] with w =
    e^(-(k-1) x.y/z^2) and M log-normal with mean 1 and parameter |x|/z. It is convex in w, so it is largest if y is
    parallel to x. As a function of y it is convex and symmetric about x/2, so it is largest at y opposite to x with
    |y| = C. There w >= 1, and the expectation grows with w and with |x|, so |x| = C. Hence the base is -1.
    """
    if noise_multiplier == 0.0:
        return np.full(orders.shape, np.inf)
    unsampled = orders / (2.0 * noise_multiplier**2)
    if rate == 1.0 or noise_multiplier < SMALLEST_NOISE:
        return unsampled
    top = int(min(np.ceil(orders.max()), LARGEST_EXACT_ORDER))
    others = np.log1p(-rate) + _log_moments(noise_multiplier, top, base=-1.0)
    own = np.log(rate) + _log_moments(noise_multiplier, top, base=0.0)
    terms = np.logaddexp(others, own) + np.arange(top + 1) * np.log(rate)
    return np.minimum(_curve_from_terms(orders, terms, terms), unsampled)


def general(rate: float, unsampled: Curve, divergence: Curve) -> Curve:
    """Return Theorem 9 of Wang et al. for any mechanism. `divergence[l]` bounds its replace-one divergence of order l =
    0..1024."""
    if rate == 1.0:
        return unsampled
    terms = _theorem_9(rate, divergence)
    curve = _curve_from_terms(ORDERS, terms, terms)
    return np.minimum(curve, unsampled)
