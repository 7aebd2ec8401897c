"""What two samples prove: right where the truth is known, and never more."""

import math

import numpy as np
import pytest
from scipy import stats

from fedsketch.attacks.statistics import (
    GaussianFit,
    Sample,
    claimed_trade_off,
    clopper_pearson,
    counted_epsilon,
    trade_off,
)
from fedsketch.privacy.accounting import exact_gaussian

DELTA = 1e-5


def gaussian(mu: float, count: int, seed: int = 0) -> Sample:
    """Scores of a Gaussian mechanism, as log-likelihood ratios."""
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((2, count))
    return Sample(mu * noise[0] - mu**2 / 2, mu * noise[1] + mu**2 / 2)


@pytest.mark.parametrize(("hits", "trials"), [(0, 50), (3, 50), (25, 50), (50, 50)])
def test_bounds_on_a_probability_are_those_of_scipy(hits: int, trials: int) -> None:
    told = stats.binomtest(hits, trials).proportion_ci(0.98, method="exact")
    low, high = clopper_pearson(np.array([hits]), trials, 0.01)
    assert (low[0], high[0]) == pytest.approx((told.low, told.high))


@pytest.mark.parametrize("mu", [0.5, 1.5, 4.0])
def test_the_fit_finds_mu_from_below(mu: float) -> None:
    fit = GaussianFit(gaussian(mu, 20_000))
    assert fit.mu == pytest.approx(mu, rel=0.06)
    assert 0.85 * mu < fit.lower_mu(1e-6) < mu
    assert fit.lower_mu(1e-6) < fit.lower_mu(0.05) < fit.mu
    assert fit.lower_epsilon(DELTA, 1e-6) < exact_gaussian.epsilon(mu, DELTA)


def test_bounds_fail_as_seldom_as_they_say() -> None:
    """Four hundred audits of one mechanism. At an error of a twentieth, more than 50 wrong ones have a probability
    below 1e-6."""
    mu = 1.2
    truth = exact_gaussian.epsilon(mu, DELTA)
    samples = [gaussian(mu, 400, seed) for seed in range(400)]
    assert sum(GaussianFit(one).lower_mu(0.05) > mu for one in samples) <= 50
    assert sum(counted_epsilon(one, DELTA, 0.05) > truth for one in samples) <= 50


def test_without_a_difference_nothing_is_proved() -> None:
    sample = Sample(*np.random.default_rng(1).standard_normal((2, 4000)))
    assert GaussianFit(sample).lower_epsilon(DELTA, 1e-6) < 0.3
    assert counted_epsilon(sample, DELTA, 1e-6) == 0.0


def test_counting_needs_no_law() -> None:
    """Randomised response at epsilon 2, whose scores are anything but Gaussian: counted is nearly 2, and never more."""
    generator, p = np.random.default_rng(2), math.exp(2) / (1 + math.exp(2))
    answers = [(generator.random(40_000) < q).astype(float) for q in (1 - p, p)]
    proved = counted_epsilon(Sample(*answers), 0.0, 1e-6)
    assert 1.8 < proved < 2.0


def test_what_always_shows_is_found_whatever_the_scores_are() -> None:
    """A quarter of the canaries stand out by far: the means say less than a threshold does."""
    sample = gaussian(0.01, 4000)
    sample.present[np.random.default_rng(3).random(4000) < 0.25] = 1e6
    fit = GaussianFit(sample)
    # At this error 500 hits of 2000 prove a fifth, and a few false alarms at most a hundredth: 2.3 - 0.8.
    assert fit.mu < 1.0 < 1.3 < fit.lower_mu(1e-6)


def test_the_trade_off_lies_on_the_right_side_of_the_claim() -> None:
    mu = 1.5
    sample, grid = gaussian(mu, 20_000), np.linspace(0, 1, 101)
    alarms, misses = trade_off(sample)
    floor = claimed_trade_off(exact_gaussian.epsilon(mu, DELTA), DELTA, alarms)
    assert (misses - floor > -0.02).all()
    assert claimed_trade_off(0.0, 0.0, grid) == pytest.approx(1 - grid)
    assert (misses < claimed_trade_off(0.1, DELTA, alarms)).any()
