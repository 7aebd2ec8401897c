"""Skellam noise shows no more than Gaussian noise whose variance is smaller by 3.

**Theorem.** Skellam noise of variance mu >= 4 on integer vectors is dominated by Gaussian noise of variance s^2 = mu -
3 on the same vectors, in any dimension: every profile in `privacy.accounting.dominating_pairs` that holds for Gaussian
noise holds for Skellam noise.

*1. Curvature.* Skellam's probabilities are f(j) = e^-mu I_j(mu), I the modified Bessel functions. With w = mu I_j' /
I_j and R^2 = mu^2 + j^2 their recurrences give mu w' = R^2 - w^2 and f(j-1) f(j+1) / f(j)^2 = 1 - T, where T = (R^2 -
w^2) / mu^2.

Claim: T <= 1/(R - 1) for mu >= 4; that is, w >= e where e^2 = R^2 - mu^2/(R - 1). Now mu e' <= R^2 - e^2 says the same
as

    R - 2 + p R / (2(R - 1)) <= R sqrt(1 - p/(R - 1)),      p = (mu/R)^2 <= 1,

which for R >= 4 follows from sqrt(1 - u) >= 1 - u/2 - u^2/2 (0 <= u <= 1) and R/(R - 1) + R/(2(R - 1)^2) <= 2. So mu (w
- e)' is at least -(w + e)(w - e): once w - e is not negative it stays so as mu grows. It is not at the start: for k =
|j| >= 4 near mu = 0, where up to mu^4 w = k + mu^2 / (2(k + 1)) and e = k + mu^2 (k - 2) / (2k (k - 1)); for k <= 3 at
mu = 4: four numbers, which a test computes.

Hence log(f(j)^2 / (f(j-1) f(j+1))) = -log(1 - T) <= log((mu - 1)/(mu - 2)) <= 1/(mu - 2) for all j.

*2. Cells.* Let h = 1/s, and cut the normal law into cells of length h. The log of the mass of [b, b + h] has second
derivative v - 1 in b, v being the variance within the cell, at most h^2/4. So for cells g_j in a row log(g_j^2 /
(g_{j-1} g_{j+1})) >= h^2 (1 - h^2/4), which is at least 1/(mu - 2) for mu >= 4. Hence log(f_j / g_j) is convex in j,
wherever the cells begin.

*3. Quantiles.* Let A_m be the normal quantile of P(N <= m), N being Skellam. Then A_m - A_{m-1} <= h for every m.
Suppose not, and let cell j end at A_m + (j - m) h. Then f and g have the same mass above m, f has less below m, and so
f_m > g_m. A convex log(f/g) that is positive at m is positive on all of one side of m, where f then has more mass than
g: a contradiction on either side.

*4. One coordinate.* Let p, p', r be the laws of N + x, N + x', N + y with x', y <= x, and a, b, c >= 0. f is
log-concave, so p'/p and r/p fall, and the sum of [a p - b p' - c r]_+ runs over n >= m for some m. Choose a threshold t
for the normal law W so that P(W + h x >= t) = P(N + x >= m). By 3, P(W + h x' >= t) <= P(N + x' >= m), and alike for y.
So the sum is at most the integral of the same [.]_+ for Gaussian noise of deviation s. By symmetry this holds for x', y
>= x too.

*5. Vectors.* Densities are products. So coordinates are exchanged for Gaussian ones one after the other: given the
outcome in the other coordinates these only change a, b and c. Where x lies between x' and y in a coordinate, y is
mirrored about x there beforehand. This makes the sum no smaller: under p the ratio r/p keeps its law and becomes
monotone in the same sense as p'/p, and (a - b u - c v)_+ is supermodular (Lorentz 1953). After it |x' - x| and |y - x|
are what they were, and for the covariance of the two the proofs in `dominating_pairs` use no more than |x' - x| |y -
x|.

For two laws (c = 0: no sampling, Poisson draws, revealed draws) H_g is at most the Gaussian's at every g in both
directions, and so is every f-divergence: Renyi curves of the Gaussian hold as well.
"""

from __future__ import annotations

import math

from fedsketch.privacy.accounting.releases import Skellam

SMALLEST_VARIANCE = 4.0
_LESS = 3.0


def noise_multiplier(mechanism: Skellam) -> float | None:
    """That of the Gaussian mechanism which dominates; None where the theorem says nothing."""
    if mechanism.variance < SMALLEST_VARIANCE:
        return None
    multiplier = math.sqrt(mechanism.variance - _LESS) / mechanism.l2_sensitivity
    # Down to 12 digits, so that rings of different resolution whose noise is meant to be equal are one kind of release.
    return float(f"{multiplier * (1 - 1e-11):.11e}")


def variance(multiplier: float, l2_sensitivity: float) -> float:
    """Of the Skellam noise that a Gaussian of this multiplier dominates; its inverse, up to rounding."""
    return (multiplier * l2_sensitivity) ** 2 + _LESS
