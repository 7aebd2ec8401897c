"""Dominating pairs: for one release of Gaussian noise and one kind of draw, the worst that two neighbouring data sets
can look like.

H_g(P || Q) = integral of [P - g Q]_+ is the hockey-stick divergence: (epsilon, delta)-DP is H_g <= delta at g =
e^epsilon, both ways round. A pair states the largest H_g over all neighbours for every g >= 1, "with the unit against
without it" and the other way round; for g < 1 H_g(P || Q) = 1 - g + g H_{1/g}(Q || P). As a supremum of convex
functions of g such a profile is convex, so that it belongs to some pair of laws (its conjugate is a trade-off
function); such pairs compose, adaptively too (Zhu, Dong, Wang 2022, Theorem 10). Everything is in units of the
sensitivity.

**Fixed-size cohorts.** Of n units m are drawn, q = m/n. Draw m - 1 units B and one more, j, among those other than the
unit i: the sum is that of B and i with probability q, of B and j else. H_g is jointly convex, so it is enough to bound
it given (B, j), where the laws are

    P = (1 - q) r + q p   against   Q = (1 - q) r + q p',      p = N(x), p' = N(x'), r = N(y)

with x the unit's vector, x' what stands in its place, y that of j, all of norm at most 1, and deviation z. For g >= 1

    H_g(P || Q) = integral of [q p - q g p' - (1 - q)(g - 1) r]_+ = E_p[(a - b X1 - c X2)_+],      X1 = p'/p,  X2 = r/p,

with a = q, b = q g, c = (1 - q)(g - 1), none negative. Under p the logarithms of X1, X2 are jointly normal and the
means of X1, X2 are 1; the covariances (times z^2) are |x' - x|^2, |y - x|^2 and (x' - x).(y - x). Kahane's inequality:
if X_k = exp(Z_k - Var(Z_k)/2) and the covariance S of Z moves along a line, Gaussian integration by parts gives

    d/dt E f(X) = 1/2 sum_kl S'_kl E[X_k X_l d_kl f(X)],

so for f with no negative second derivative, mixed ones included, E f grows with every entry of S. f = (a - b x1 - c
x2)_+ is such a function (as a limit of smooth ones h(a - b x1 - c x2), h convex: the second derivatives are b^2 h'', b
c h'', c^2 h''). What is left is to find x, x', y for which all three entries are largest at once:

- ZERO_OUT, x' = 0, with against without: |x|^2 <= 1, |y - x|^2 <= 4, -x.(y - x) <= 2: all three at y = -x, |x| = 1. On
  a line: p at 1, p' at 0, r at -1.
- ZERO_OUT, without against with: p and p' change places; |x|^2, |y|^2, x.y are largest at y = x: r is p. Reflected,
  that is integral of [q p - (g - 1 + q) p']_+: a Poisson draw's.
- REPLACE_ONE: |x' - x|^2, |y - x|^2, (x' - x).(y - x) are at most 4, all three at x' = y = -x: r is p'. Again a Poisson
  draw's, at twice the sensitivity, and the same both ways round.

**Poisson draws**, given the others that are drawn: (1 - q) p' + q p against p' (zero-out or add/remove adjacency),
worst at
|x| = 1 by the same inequality. If draws show themselves (`Poisson.missed`), then by joint convexity the profile is at most a mixture:
that of the Gaussian without sampling with that probability, the Poisson draw's else.

**Draws that take others along** (whole clients, where the unit is an example): nothing is known about r, but given the
draw the divergence is that of the Gaussian, or of two equal laws, [1 - g]_+. So the profile is q times the Gaussian's
for g >= 1.

All profiles grow with the rate and fall with the noise: by Kahane's inequality, and because the derivative of the
integrand by q is not negative where the integrand is positive (there p >= p', or p' >= p the other way round).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from fedsketch.privacy.accounting.renyi import Curve


def _overlap(a: Curve | float, b: Curve, c: Curve | float, noise: float) -> Curve:
    """The integral of [a N(1) - b N(0) - c N(-1)]_+ for a, b, c >= 0, b > 0 and deviation `noise`.

    With u = e^(-w / z^2) the ratios to N(1) at w are u e^(1 / 2z^2) and u^2: the integrand is positive above the one
    root of a quadratic equation.
    """
    from scipy.special import ndtr

    linear = b * np.exp(0.5 / noise**2)
    root = 2.0 * a / (linear + np.sqrt(linear**2 + 4.0 * a * c))
    with np.errstate(divide="ignore"):
        start = -noise * np.log(root)  # of w / z
    step = 1.0 / noise
    tails = a * ndtr(step - start) - b * ndtr(-start) - c * ndtr(-step - start)
    return np.maximum(tails, 0.0)


@dataclass(frozen=True)
class Pair(ABC):
    """`noise` is the noise multiplier over the sensitivity of the mechanism without sampling; that one is a bound
    too."""

    noise: float

    @abstractmethod
    def with_unit(self, g: Curve) -> Curve:
        """The largest H_g(with the unit || without it) for g >= 1."""

    def without_unit(self, g: Curve) -> Curve:
        """The largest H_g(without the unit || with it) for g >= 1."""
        return self.with_unit(g)

    @property
    def symmetric(self) -> bool:
        return type(self).without_unit is Pair.without_unit

    def covering(self, others: Iterable[Self]) -> Self:
        """A pair of the same kind that dominates this one and the others: the least noise, and the most of everything
        else."""
        worst = {
            one.name: max(getattr(pair, one.name) for pair in (self, *others))
            for one in fields(self)
        }
        return replace(self, **{**worst, "noise": min(pair.noise for pair in (self, *others))})


@dataclass(frozen=True)
class PlainPair(Pair):
    """No sampling: N(1) against N(0)."""

    def with_unit(self, g: Curve) -> Curve:
        return _overlap(1.0, g, 0.0, self.noise)


@dataclass(frozen=True)
class SampledPair(Pair):
    """A unit is drawn with probability `rate`, strictly between 0 and 1."""

    rate: float


@dataclass(frozen=True)
class PoissonPair(SampledPair):
    """Every unit is drawn independently; with probability `missed` it is drawn and its draw shows."""

    missed: float = 0.0

    def with_unit(self, g: Curve) -> Curve:
        return self._mixed(_overlap(self.rate, g - 1.0 + self.rate, 0.0, self.noise), g)

    def without_unit(self, g: Curve) -> Curve:
        rest = np.maximum(1.0 - g * (1.0 - self.rate), 0.0)
        return self._mixed(_overlap(rest, g * self.rate, 0.0, self.noise), g)

    def _mixed(self, hidden: Curve, g: Curve) -> Curve:
        if self.missed == 0.0:
            return hidden
        return (1.0 - self.missed) * hidden + self.missed * PlainPair(self.noise).with_unit(g)


@dataclass(frozen=True)
class ZeroOutPair(SampledPair):
    """Cohorts of a fixed size, zero-out adjacency."""

    def with_unit(self, g: Curve) -> Curve:
        others = (1.0 - self.rate) * (g - 1.0)
        return _overlap(self.rate, self.rate * g, others, self.noise)

    def without_unit(self, g: Curve) -> Curve:
        return PoissonPair(self.noise, self.rate).with_unit(g)


@dataclass(frozen=True)
class ReplaceOnePair(SampledPair):
    """Cohorts of a fixed size, replace-one adjacency; the noise is over the replace-one sensitivity, 2C."""

    def with_unit(self, g: Curve) -> Curve:
        return PoissonPair(self.noise, self.rate).with_unit(g)


@dataclass(frozen=True)
class RevealedPair(SampledPair):
    """Any draw, shown to the adversary."""

    def with_unit(self, g: Curve) -> Curve:
        return self.rate * PlainPair(self.noise).with_unit(g)
