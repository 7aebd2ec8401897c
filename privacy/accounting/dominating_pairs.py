"""Dominating pairs: for one Gaussian release and one kind of sampling, the pair of output distributions that an
adversary can tell apart most easily, over all neighbouring data sets.

H_g(P || Q) = integral of [P - g Q]_+ is the hockey-stick divergence. A release is (epsilon, delta)-DP if H_g <= delta
at g = e^epsilon in both directions. A pair gives the largest H_g over all neighbours for every g >= 1 (its profile),
once for "with the unit against without it" and once for the other direction. For g < 1, H_g(P || Q) = 1 - g + g
H_{1/g}(Q || P). As a supremum of convex functions of g a profile is convex, so it belongs to some pair of
distributions (its conjugate is a trade-off function). Such pairs compose, also adaptively (Zhu, Dong, Wang 2022,
Theorem 10). Everything is in units of the sensitivity.

**Fixed-size cohorts.** Of n units m are drawn, q = m/n. To describe the draw, take m - 1 units B and one more unit j,
all different from the unit i. The sum is that of B and i with probability q, and that of B and j otherwise. H_g is
jointly convex, so it is enough to bound it given (B, j). The distributions are then

    P = (1 - q) r + q p   against   Q = (1 - q) r + q p',      p = N(x), p' = N(x'), r = N(y)

where x is the vector of the unit, x' the vector that replaces it, y the vector of j, all of norm at most 1, and N(x)
has mean x and standard deviation z. For g >= 1

    H_g(P || Q) = integral of [q p - q g p' - (1 - q)(g - 1) r]_+ = E_p[(a - b X1 - c X2)_+],      X1 = p'/p,  X2 = r/p,

with a = q, b = q g, c = (1 - q)(g - 1), none negative. Under p the logarithms of X1 and X2 are jointly normal, and X1
and X2 have mean 1. The variances and the covariance of the logarithms (times z^2) are |x' - x|^2, |y - x|^2 and
(x' - x).(y - x). Kahane's inequality: if X_k = exp(Z_k - Var(Z_k)/2) and the covariance S of Z moves along a line,
Gaussian integration by parts gives

    d/dt E f(X) = 1/2 sum_kl S'_kl E[X_k X_l d_kl f(X)].

So if no second derivative of f is negative, mixed ones included, E f grows with every entry of S. The function f =
(a - b x1 - c x2)_+ has this property, as a limit of smooth functions h(a - b x1 - c x2) with convex h: their second
derivatives are b^2 h'', b c h'', c^2 h''. It remains to find x, x', y for which all three entries are largest at the
same time:

- ZERO_OUT, x' = 0, with the unit against without it: |x|^2 <= 1, |y - x|^2 <= 4, -x.(y - x) <= 2. All three are
  largest at y = -x, |x| = 1. On a line, p is at 1, p' at 0 and r at -1.
- ZERO_OUT, without the unit against with it: p and p' change places. |x|^2, |y|^2, x.y are largest at y = x, so r
  equals p. After a reflection this is the integral of [q p - (g - 1 + q) p']_+, as for a Poisson draw.
- REPLACE_ONE: |x' - x|^2, |y - x|^2, (x' - x).(y - x) are at most 4, and all three reach it at x' = y = -x, so r
  equals p'. This is again the profile of a Poisson draw, with twice the sensitivity, and the same in both directions.

**Poisson draws.** Given the other drawn units, (1 - q) p' + q p is compared with p' (zero-out or add/remove
adjacency). By the same inequality the worst case is |x| = 1. If the draw of the unit is visible with some probability
(`Poisson.missed`), then by joint convexity the profile is at most a mixture: the Gaussian's profile without sampling
with that probability, and the profile of the Poisson draw otherwise.

**Memory.** A unit may remember when it was drawn, so that its vector depends on that (`error_feedback`). Composition
needs that given all earlier outputs, each release is bounded by its profile.

- Poisson draws: let the adversary also see which other units were drawn, and all that they decide at random. Their
  vectors then follow from what she sees, in both worlds alike, and the coin of the unit is new in every release. The
  unit's own vector is random, because she does not see its earlier coins. So P is a mixture over vectors of norm at
  most 1, against the same Q for all of them (zeros), and H_g is jointly convex: the profile holds.
- Fixed-size draws: the above fails. The draws of others are not independent of the unit's, so what she saw makes other
  draws likely with the unit than without it, and r has one law in P and another in Q (a test shows how this breaks the
  profile). But if she sees the whole draw (and what the others decide), the vectors of all others are the same in both
  worlds, and a draw depends on no data. So `RevealedPair` holds. `WithoutReplacement.with_memory` is booked so.
- Full passes are accounted as if their order was seen, and releases without sampling hide no draw: nothing changes.

**Draws of several units together** (whole clients, if the unit is an example): nothing is known about r. But given the
draw, the divergence is that of the Gaussian, or that of two equal distributions, [1 - g]_+. So for g >= 1 the profile
is q times the Gaussian's.

**A secret sketch.** The outputs are centred Gaussians of one dimension and two variances, whose ratio is at most rho
(`privacy.accounting.sketched_gaussian`). The ratio of densities depends on the squared length alone, so H_g is a
difference of two chi-square probabilities (`VariancePair`). It grows with the ratio: noise of a third variance c, added
to both, makes rho into (rho + c)/(1 + c), which takes every value between 1 and rho, and adding noise never raises H_g.

All other profiles grow with the rate and fall with the noise. This follows from Kahane's inequality, and because the
derivative of the integrand with respect to q is not negative where the integrand is positive (there p >= p', or p' >=
p in the other direction).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from fedsketch.privacy.accounting.renyi import Curve

_LARGEST_EPSILON = 700.0  # e^epsilon is a float
_EXACT = 1e-12


def _overlap(a: Curve | float, b: Curve, c: Curve | float, noise: float) -> Curve:
    """Return the integral of [a N(1) - b N(0) - c N(-1)]_+ for a, b, c >= 0, b > 0 and standard deviation z = `noise`.

    With u = e^(-w / z^2), the ratios of N(0) and N(-1) to N(1) at w are u e^(1 / 2z^2) and u^2. So the integrand is
    positive above the single root of a quadratic equation.
    """
    from scipy.special import ndtr

    linear = b * np.exp(0.5 / noise**2)
    root = 2.0 * a / (linear + np.sqrt(linear**2 + 4.0 * a * c))
    with np.errstate(divide="ignore"):
        start = -noise * np.log(root)  # the root as w / z
    step = 1.0 / noise
    tails = a * ndtr(step - start) - b * ndtr(-start) - c * ndtr(-step - start)
    return np.maximum(tails, 0.0)


@dataclass(frozen=True)
class Pair(ABC):
    """`noise` is the noise multiplier of the mechanism without sampling: its noise divided by its sensitivity. That
    mechanism, as a `PlainPair`, dominates as well."""

    noise: float

    @abstractmethod
    def with_unit(self, g: Curve) -> Curve:
        """Return the largest H_g(with the unit || without it) for g >= 1."""

    def without_unit(self, g: Curve) -> Curve:
        """Return the largest H_g(without the unit || with it) for g >= 1."""
        return self.with_unit(g)

    @property
    def symmetric(self) -> bool:
        return type(self).without_unit is Pair.without_unit

    def epsilon(self, delta: float, largest: float) -> float:
        """Return the smallest epsilon of one release of this pair, if it is below `largest`; otherwise infinity."""

        def left(epsilon: float) -> float:
            g = np.exp(np.array([epsilon]))
            return float(max(self.with_unit(g)[0], self.without_unit(g)[0]))

        largest = min(largest, _LARGEST_EPSILON)
        if left(largest) > delta:
            return math.inf
        low, high = 0.0, largest
        while high - low > _EXACT * high:
            middle = (low + high) / 2.0
            low, high = (low, middle) if left(middle) <= delta else (middle, high)
        return high

    def covering(self, others: Iterable[Self]) -> Self:
        """Return a pair of the same kind that dominates this one and the others: with the smallest noise and the
        largest of every other field."""
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
    """Every unit is drawn independently. With probability `missed` it is drawn and the adversary can see that."""

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
class GaussianZeroOutPair(ZeroOutPair):
    """The same, of Gaussian noise itself, which `privacy.accounting.adaptive_draws` composes more tightly."""


@dataclass(frozen=True)
class ReplaceOnePair(SampledPair):
    """Cohorts of a fixed size, replace-one adjacency. The noise is divided by the replace-one sensitivity, 2C."""

    def with_unit(self, g: Curve) -> Curve:
        return PoissonPair(self.noise, self.rate).with_unit(g)


@dataclass(frozen=True)
class RevealedPair(SampledPair):
    """Any draw, if the adversary sees who was drawn."""

    def with_unit(self, g: Curve) -> Curve:
        return self.rate * PlainPair(self.noise).with_unit(g)


@dataclass(frozen=True)
class VariancePair(Pair):
    """N(0, ratio I) against N(0, I) in `dim` dimensions, ratio > 1; the unit may be in either of the two. No Gaussian
    pair with different means dominates it, so its `noise` is 0."""

    ratio: float
    dim: int

    def with_unit(self, g: Curve) -> Curve:
        from scipy.special import chdtr, chdtrc

        # The ratio of the densities at a squared length t is e^(t slope / 2) ratio^(-dim/2).
        slope = -math.expm1(-math.log(self.ratio))
        middle = self.dim * math.log(self.ratio)
        above = (middle + 2.0 * np.log(g)) / slope
        below = np.maximum(middle - 2.0 * np.log(g), 0.0) / slope
        wide = chdtrc(self.dim, above / self.ratio) - g * chdtrc(self.dim, above)
        narrow = chdtr(self.dim, below) - g * chdtr(self.dim, below / self.ratio)
        return np.maximum(np.maximum(wide, narrow), 0.0)
