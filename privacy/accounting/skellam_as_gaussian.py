"""Skellam noise protects at least as well as Gaussian noise with a variance that is smaller by 3/4.

**Theorem.** Skellam noise of variance mu >= 4 on integer vectors is dominated by Gaussian noise of variance
s^2 = mu - 3/4 on the same vectors, in any dimension: every profile in `privacy.accounting.dominating_pairs` that holds
for Gaussian noise holds for Skellam noise.

*1. Curvature.* The Skellam probabilities are f(j) = e^-mu I_j(mu), where I are the modified Bessel functions. Let w =
mu I_j' / I_j and R^2 = mu^2 + j^2. The recurrences of the Bessel functions give mu w' = R^2 - w^2 and f(j-1) f(j+1) /
f(j)^2 = 1 - T, where T = (R^2 - w^2) / mu^2.

Claim: T <= 1/(R - a) with a = 1/8, for mu >= 4. In other words, w >= e where e^2 = R^2 - mu^2/(R - a). The inequality
mu e' <= R^2 - e^2 is equivalent to

    R - a - 1 + p R / (2(R - a)) <= R sqrt(1 - p/(R - a)),      p = (mu/R)^2 <= 1.

For R >= 4 the root is of 1 - u with u = p/(R - a) <= 0.26, and sqrt(1 - u) >= 1 - u/2 - u^2/6 for 0 <= u <= 0.46
(square both sides). So it is enough that p R/(R - a) + p^2 R/(6(R - a)^2) <= 1 + a. The left side grows with p and
falls with R, and is below 1.08 at p = 1, R = 4. So mu (w - e)' is at least -(w + e)(w - e). If w - e is not negative
at some mu, it therefore stays so as mu grows. The starting points: for k = |j| >= 4 it holds near mu = 0, where up to
terms in mu^4 w = k + mu^2 / (2(k + 1)) and e = k + mu^2 (k - a - 1) / (2k (k - a)), which is less. For k <= 3 it holds
at mu = 4; a test computes these four numbers.

Hence log(f(j)^2 / (f(j-1) f(j+1))) = -log(1 - T) <= L = log((x + 1/2) / (x - 1/2)) for all j, where x = mu - 5/8.

*2. Cells.* Let h = 1/s, and divide the normal distribution into cells of length h. The log of the mass of [b, b + h]
has second derivative v - 1 in b, where v is the variance within the cell. It is at most h^2/12, that of a uniform
variable: among the densities e^(tx - u x^2/2) on the cell, follow those with a fixed mean m from u = 1 to u = 0. With
mu_3 and mu_4 the third and fourth central moments, v changes by -(mu_4 - v^2 - mu_3^2/v)/2 per unit of u, which is not
positive (Cauchy-Schwarz), and at u = 0, e^(tx) on an interval has its largest variance at t = 0.

So for consecutive cells g_j, log(g_j^2 / (g_{j-1} g_{j+1})) >= h^2 (1 - h^2/12). This is at least L: with y = s^2 =
x - 1/8 >= 3.25, the series of the logarithm gives L <= 1/x + 1/(12 x^3 (1 - 1/(4 x^2))), and

    h^2 (1 - h^2/12) - 1/x = (1/y^2) (1/(8 + 1/y) - 1/12) >= 0.037/y^2 > 0.026/y^2 >= 1/(12 x^3 (1 - 1/(4 x^2))).

Hence log(f_j / g_j) is convex in j, wherever the cells begin. (For large mu these steps allow nothing below 7/12: at j
= 0 the curvature is about 1/(mu - 1/2), and a cell's variance is about h^2/12.)

*3. Quantiles.* Let N be a Skellam variable and A_m the normal quantile of P(N <= m). Then A_m - A_{m-1} <= h for every
m. Suppose not, and let cell j end at A_m + (j - m) h. Then f and g have the same mass above m, f has less below m, and
so f_m > g_m. A convex log(f/g) that is positive at m is positive on one whole side of m. There f has more mass than g,
which is a contradiction on either side.

*4. One coordinate.* Let p, p', r be the distributions of N + x, N + x', N + y with x', y <= x, and a, b, c >= 0. f is
log-concave, so p'/p and r/p are decreasing, and the sum of [a p - b p' - c r]_+ runs over n >= m for some m. Choose a
threshold t for a standard normal variable W so that P(W + h x >= t) = P(N + x >= m). By 3, P(W + h x' >= t) <= P(N +
x' >= m), and the same for y. So the sum is at most the integral of the same [.]_+ for Gaussian noise of standard
deviation s. By symmetry this also holds for x', y >= x.

*5. Vectors.* Densities are products, so the coordinates can be replaced by Gaussian ones one after the other: given
the outcome in the other coordinates, these only change a, b and c. If x is between x' and y in a coordinate, y is
first mirrored about x there. This does not make the sum smaller: under p the ratio r/p keeps its distribution and
becomes monotone in the same direction as p'/p, and (a - b u - c v)_+ is supermodular (Lorentz 1953). Mirroring does
not change |x' - x| and |y - x|, and for the covariance of the two the proofs in `dominating_pairs` use only the bound
|x' - x| |y - x|.

For two distributions (c = 0: no sampling, Poisson draws, revealed draws) H_g is at most that of the Gaussian for every
g and in both directions. The same is true of every f-divergence, so Renyi curves of the Gaussian are valid too.
"""

from __future__ import annotations

import math

from fedsketch.privacy.accounting.releases import Skellam

SMALLEST_VARIANCE = 4.0
_VARIANCE_LOSS = 0.75  # how much smaller the variance of the Gaussian is


def noise_multiplier(mechanism: Skellam) -> float | None:
    """Return the noise multiplier of the dominating Gaussian mechanism; None if the variance is too small for the
    theorem."""
    if mechanism.variance < SMALLEST_VARIANCE:
        return None
    multiplier = math.sqrt(mechanism.variance - _VARIANCE_LOSS) / mechanism.l2_sensitivity
    # Round down to 12 digits. Rings of different resolution that should have equal noise then give the same release.
    return float(f"{multiplier * (1 - 1e-11):.11e}")


def variance(multiplier: float, l2_sensitivity: float) -> float:
    """Return the inverse, up to rounding: the variance of the Skellam noise that a Gaussian of this multiplier
    dominates."""
    return (multiplier * l2_sensitivity) ** 2 + _VARIANCE_LOSS
