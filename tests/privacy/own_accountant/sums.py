"""Noisy sums with the worst data, as an adversary sees them: one round of each kind of draw, in both directions.

Adjacency: the unit's contribution is there or is zero, and everything else stays. The data of the others is what hides
the unit least, as far as we know; it is data that can exist, so the truth is never below what comes out here.

- `always`: the unit is in the sum.
- `poisson(rate)`: the unit is in the sum with this probability, independently of the others, whose data is zero.
- `fixed_size(rate)`: with this probability the unit is one of a number of members that is known. All others contribute
  the opposite of the unit, so the sum is at -1 without the unit and at +1 or 0 with it, in units of a contribution.
- `revealed(rate)`: an example is drawn together with its client, whose other examples move the sum so far that
  everybody sees the draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tests.privacy.own_accountant.losses import Interval, Loss, composed, rounded_down
from tests.privacy.own_accountant.noise import Mixture, gaussian_loss, skellam_loss


class Pair(NamedTuple):
    """The losses of the world with the unit against the one without, and the other way round."""

    there: Loss
    gone: Loss


def epsilon(rounds: Sequence[tuple[Pair, int]], delta: float) -> Interval:
    """Of so many rounds of each kind: the larger of both directions."""
    there = composed([(pair.there, count) for pair, count in rounds]).epsilon(delta)
    if all(pair.there is pair.gone for pair, _ in rounds):
        return there
    gone = composed([(pair.gone, count) for pair, count in rounds]).epsilon(delta)
    return Interval(max(there.low, gone.low), max(there.high, gone.high))


def either(cases: Sequence[tuple[float, Pair]]) -> Pair:
    """The adversary sees which case it is; each comes with its probability, whatever the unit does."""
    return Pair(
        _mixed([(weight, pair.there) for weight, pair in cases]),
        _mixed([(weight, pair.gone) for weight, pair in cases]),
    )


def revealed(pair: Pair, rate: float) -> Pair:
    """Everybody sees whether the unit was drawn: if not, nothing of it shows."""
    nothing = Loss(pair.there.step, 0, np.ones(1), 0.0)
    return either([(rate, pair), (1.0 - rate, Pair(nothing, nothing))])


def _mixed(cases: Sequence[tuple[float, Loss]]) -> Loss:
    first = min(loss.first for _, loss in cases)
    masses = np.zeros(max(loss.first + len(loss.masses) for _, loss in cases) - first)
    for weight, loss in cases:
        start = loss.first - first
        masses[start : start + len(loss.masses)] += weight * loss.masses
    slack = max(loss.slack for _, loss in cases)
    missing = sum(weight * loss.missing for weight, loss in cases)
    return Loss(cases[0][1].step, first, masses, slack, missing)


@dataclass(frozen=True)
class GaussianSum:
    """`multiplier` is the deviation of the noise that the adversary does not know, over the largest contribution of the
    unit.

    Noise that is the same in all directions depends on lengths alone, so a line is all there is to look at.
    """

    multiplier: float

    def always(self, step: float) -> Pair:
        return self._pair([(1.0, 1.0)], [(1.0, 0.0)], step)

    def poisson(self, rate: float, step: float) -> Pair:
        return self._pair([(1.0 - rate, 0.0), (rate, 1.0)], [(1.0, 0.0)], step)

    def fixed_size(self, rate: float, step: float) -> Pair:
        others = (1.0 - rate, -1.0)
        return self._pair([others, (rate, 1.0)], [others, (rate, 0.0)], step)

    def _pair(self, there: Mixture, gone: Mixture, step: float) -> Pair:
        p, q = ([(w, c / self.multiplier) for w, c in mixture] for mixture in (there, gone))
        return Pair(gaussian_loss(p, q, step), gaussian_loss(q, p, step))


@dataclass(frozen=True)
class SkellamSum:
    """Noise of this variance, as far as the adversary does not know it, and a contribution of the unit: integers, one
    per coordinate.

    The largest epsilon of all contributions within a bound is at least that of any one of them.
    """

    variance: float
    contribution: tuple[int, ...]

    def always(self, step: float) -> Pair:
        """The coordinates are independent: their losses add up. The noise is symmetric, so both directions are
        alike."""
        sizes = {
            abs(c): sum(abs(d) == abs(c) for d in self.contribution) for c in self.contribution
        }
        parts = [
            (skellam_loss([(1.0, size)], [(1.0, 0.0)], self.variance, step), count)
            for size, count in sizes.items()
            if size
        ]
        loss = parts[0][0] if len(parts) == 1 and parts[0][1] == 1 else composed(parts)
        return Pair(loss, loss)

    def poisson(self, rate: float, step: float) -> Pair:
        """From the loss of `always`, l = log(p/q): it is log(1 - rate + rate e^l), whose law under q is that of -l
        under p, by symmetry."""
        plain = self.always(step).there
        inside, outside = plain.values, -plain.values - plain.slack  # both rounded down
        both = np.concatenate([inside, outside])
        masses = np.concatenate([rate * plain.masses, (1.0 - rate) * plain.masses])

        def sampled(losses: np.ndarray) -> np.ndarray:
            # Grows by at most the growth of l.
            return np.logaddexp(math.log1p(-rate), math.log(rate) + losses)

        kept = {"slack": plain.slack, "missing": plain.missing}
        there = rounded_down(sampled(both), masses, step, **kept)
        gone = rounded_down(-sampled(-plain.values), plain.masses, step, **kept)
        return Pair(there, gone)

    def fixed_size(self, rate: float, step: float) -> Pair:
        """For contributions along one coordinate."""
        (size,) = (c for c in self.contribution if c)
        others = (1.0 - rate, -float(size))
        p: Mixture = [others, (rate, float(size))]
        q: Mixture = [others, (rate, 0.0)]
        return Pair(
            skellam_loss(p, q, self.variance, step), skellam_loss(q, p, self.variance, step)
        )


NoisySum = GaussianSum | SkellamSum
