"""What two samples of scores prove: Clopper-Pearson bounds, and the fit of a Gaussian mechanism.

A test that says "present" when the score is above a threshold has a rate of false alarms a and a rate of hits h. Under
(epsilon, delta)-DP, h <= e^epsilon a + delta and 1 - a <= e^epsilon (1 - h) + delta. So a lower bound on h and an upper
bound on a prove a lower bound on epsilon, without any assumption on the scores. Thresholds are chosen on one half of
the trials and evaluated on the other.

The fit assumes that the scores differ like those of a Gaussian mechanism (mu-GDP, Dong, Roth, Su 2022):
Phi^-1(h) - Phi^-1(a) = mu at every threshold. It takes the larger of two lower bounds on mu, each with half of the
error allowed. One is the difference of the means over the standard deviation, which is sharper if scores are Gaussian.
The other is Phi^-1(h) - Phi^-1(a) at the best threshold, which holds if they are not. So a few thousand trials are
enough for deltas that counting cannot reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fedsketch.privacy.accounting import exact_gaussian

Scores = NDArray[np.float64]
Counts = NDArray[np.int64]
_THRESHOLDS = 200
_ENDS = 50


@dataclass(frozen=True)
class Sample:
    """Scores of trials without the canary and with it. High scores mean that it was there."""

    absent: Scores
    present: Scores

    def halves(self) -> tuple[Sample, Sample]:
        """Return every second trial: one half to choose thresholds, the other to evaluate them."""
        return (
            Sample(self.absent[::2], self.present[::2]),
            Sample(self.absent[1::2], self.present[1::2]),
        )

    def mirrored(self) -> Sample:
        """Return the same trials seen from the other side: high scores mean that the canary was absent."""
        return Sample(-self.present, -self.absent)

    def thresholds(self) -> Scores:
        """Return some of all scores, and all scores near the ends, because outliers may be larger than all others."""
        every = np.unique(np.concatenate([self.absent, self.present]))
        if len(every) <= _THRESHOLDS:
            return every
        places = np.linspace(0, len(every) - 1, _THRESHOLDS).astype(int)
        ends = np.arange(_ENDS)
        return every[np.unique(np.concatenate([places, ends, len(every) - 1 - ends]))]

    def rates(self, bars: Scores, error: float) -> tuple[Scores, Scores]:
        """Return a lower bound on hits and an upper bound on false alarms above each threshold. Both hold except with
        probability `error`."""

        def above(scores: Scores) -> Counts:
            return len(scores) - np.searchsorted(np.sort(scores), bars, side="right")

        hit, _ = clopper_pearson(above(self.present), len(self.present), error / 2)
        _, alarm = clopper_pearson(above(self.absent), len(self.absent), error / 2)
        return hit, alarm


def clopper_pearson(hits: Counts, trials: int, error: float) -> tuple[Scores, Scores]:
    """Lower and upper bounds on probabilities, each wrong with probability at most `error`."""
    some, not_all = np.maximum(hits, 1), np.minimum(hits, trials - 1)
    low = np.where(hits > 0, special.betaincinv(some, trials - some + 1, error), 0.0)
    high = special.betainccinv(not_all + 1, trials - not_all, error)
    return low, np.where(hits < trials, high, 1.0)


def counted_epsilon(sample: Sample, delta: float, error: float) -> float:
    """Return a lower bound on epsilon that is wrong with probability at most `error`, whatever the distribution of the
    scores."""
    chosen, judged = sample.halves()

    def proved(one: Sample, bars: Scores) -> Scores:
        hit, alarm = one.rates(bars, error)
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(hit - delta, 0.0)) - np.log(alarm)

    # In the other direction, a low score means that the canary was absent. The first half decides which direction is
    # used.
    ways = [(chosen, judged), (chosen.mirrored(), judged.mirrored())]
    first, second = max(ways, key=lambda way: proved(way[0], way[0].thresholds()).max())
    bars = first.thresholds()
    return max(0.0, float(proved(second, bars[[int(proved(first, bars).argmax())]])[0]))


@dataclass(frozen=True)
class GaussianFit:
    """The estimate of mu for charts and tables; `lower_mu` gives what is proved under the assumption."""

    sample: Sample

    @property
    def mu(self) -> float:
        deviation = self._deviation
        difference = float(self.sample.present.mean() - self.sample.absent.mean())
        return difference / deviation if deviation > 0 else math.inf * np.sign(difference or 0.0)

    def lower_mu(self, error: float) -> float:
        return max(0.0, self._by_moments(error / 2), self._by_threshold(error / 2))

    def epsilon(self, delta: float) -> float:
        return exact_gaussian.epsilon(max(self.mu, 0.0), delta)

    def lower_epsilon(self, delta: float, error: float) -> float:
        return exact_gaussian.epsilon(self.lower_mu(error), delta)

    @property
    def _deviation(self) -> float:
        return math.sqrt(0.5 * (self.sample.absent.var(ddof=1) + self.sample.present.var(ddof=1)))

    def _by_moments(self, error: float) -> float:
        """Return a lower bound from the standardised difference of the two means. For Gaussian scores its variance is
        1/n + 1/m + mu^2 / (2 (n + m - 2))."""
        n, m, mu = len(self.sample.absent), len(self.sample.present), self.mu
        if not math.isfinite(mu):
            return 0.0
        spread = math.sqrt(1 / n + 1 / m + mu**2 / (2 * (n + m - 2)))
        return mu - float(-special.ndtri(error)) * spread

    def _by_threshold(self, error: float) -> float:
        chosen, judged = self.sample.halves()

        def proved(one: Sample, bars: Scores) -> Scores:
            hit, alarm = one.rates(bars, error)
            return special.ndtri(hit) - special.ndtri(alarm)

        bars = chosen.thresholds()
        return float(proved(judged, bars[[int(proved(chosen, bars).argmax())]])[0])


def trade_off(sample: Sample) -> tuple[Scores, Scores]:
    """Return observed rates of false alarms and of misses over all thresholds."""
    bars = np.sort(np.concatenate([sample.absent, sample.present]))
    alarms = 1 - np.searchsorted(np.sort(sample.absent), bars, side="right") / len(sample.absent)
    misses = np.searchsorted(np.sort(sample.present), bars, side="right") / len(sample.present)
    return alarms, misses


def claimed_trade_off(epsilon: float, delta: float, alarms: Scores) -> Scores:
    """Return the fewest misses that (epsilon, delta)-DP allows."""
    first = 1 - delta - math.exp(min(epsilon, 700.0)) * alarms
    second = math.exp(-epsilon) * (1 - delta - alarms)
    return np.maximum(0.0, np.maximum(first, second))
