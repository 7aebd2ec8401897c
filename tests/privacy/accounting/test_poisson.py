from __future__ import annotations

import math
from itertools import product

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as reference
from scipy import special

from fedsketch.privacy.accounting import poisson, skellam
from fedsketch.privacy.accounting.renyi import LARGEST_SAMPLED_ORDER, ORDERS

PAIRS = [(0.1, 1.0), (0.01, 0.5), (0.5, 10.0), (0.001, 2.0), (0.9, 0.7), (0.1, 5.0), (1e-6, 0.3)]


@pytest.mark.parametrize(("rate", "noise_multiplier"), PAIRS)
def test_integer_orders_agree_with_dp_accounting(rate: float, noise_multiplier: float) -> None:
    orders = np.array([2.0, 3.0, 5.0, 17.0, 64.0, 256.0, 1024.0])
    theirs = reference._compute_rdp_poisson_subsampled_gaussian(rate, noise_multiplier, orders)
    ours = poisson.gaussian(rate, noise_multiplier, orders)
    # dp-accounting adds 1 to tiny sums: its own rounding is 1e-15 absolute.
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(("rate", "noise_multiplier"), [(0.1, 1.0), (0.5, 3.0), (0.01, 0.5)])
@pytest.mark.parametrize("order", [1.1, 2.5, 7.3])
def test_fractional_orders_match_an_independent_integral(
    rate: float, noise_multiplier: float, order: float
) -> None:
    """dp-accounting bounds an alternating series by its absolute values here; the integral itself is the truth."""
    with mpmath.workdps(30):
        z2 = mpmath.mpf(noise_multiplier) ** 2

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            ratio = 1 - rate + rate * mpmath.exp((2 * x - 1) / (2 * z2))
            return mpmath.npdf(x, 0, noise_multiplier) * ratio**order

        edges = [-15 * noise_multiplier, 0, 1, order, order + 15 * noise_multiplier]
        exact = float(mpmath.log(mpmath.quad(integrand, edges)) / (order - 1))
    ours = poisson.gaussian(rate, noise_multiplier, np.array([order]))[0]
    assert ours == pytest.approx(exact, rel=1e-9)
    theirs = reference._compute_rdp_poisson_subsampled_gaussian(rate, noise_multiplier, [order])[0]
    assert ours <= theirs * (1 + 1e-9)


@pytest.mark.parametrize("rate", [0.05, 0.4])
@pytest.mark.parametrize("shift", [1, 3])
@pytest.mark.parametrize("order", [2, 3, 6])
def test_sampled_skellam_bounds_both_directions(rate: float, shift: int, order: int) -> None:
    """Direct sums over the integers: the curve must not be below either exact divergence."""
    mu = 40.0
    x = np.arange(-150, 151)
    q = np.log(special.ive(np.abs(x), mu))
    p = np.log(special.ive(np.abs(x - shift), mu))
    mixture = np.logaddexp(np.log1p(-rate) + q, np.log(rate) + p)
    forward = special.logsumexp(order * mixture + (1 - order) * q) / (order - 1)
    backward = special.logsumexp(order * q + (1 - order) * mixture) / (order - 1)
    unsampled = skellam.curve(mu, shift, shift)
    every = skellam.curve(mu, shift, shift, np.arange(LARGEST_SAMPLED_ORDER + 1.0))
    ours = poisson.symmetric_integer_curve(rate, unsampled, every)
    bound = ours[np.flatnonzero(order == ORDERS)[0]]
    assert backward <= forward * (1 + 1e-9)
    assert forward <= bound
    assert bound <= 1.5 * forward


def test_extreme_rates() -> None:
    assert np.all(poisson.gaussian(0.0, 1.0) == 0.0)
    np.testing.assert_allclose(poisson.gaussian(1.0, 2.0), ORDERS / 8.0)
    assert np.all(np.isinf(poisson.gaussian(0.5, 0.0)))


@pytest.mark.parametrize("smallest", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.7, 1.0])
def test_missed_is_the_chance_that_a_unit_completes_the_smallest_cohort(
    rate: float, smallest: int
) -> None:
    """All draws of five: the unit is drawn, and the cohort would not have been asked without it, nor passed as
    empty."""
    chance = 0.0
    for draw in product([0, 1], repeat=5):
        probability = math.prod(rate if drawn else 1 - rate for drawn in draw)
        if draw[0] and sum(draw) == smallest > 1:
            chance += probability
    assert poisson.missed(rate, 5, smallest) == pytest.approx(chance, abs=1e-15)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.8])
def test_any_mechanism_is_bounded_in_both_directions(rate: float, seed: int) -> None:
    """Two laws on six points, made up: close to each other or far apart, with no symmetry."""
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.full(6, 2.0))
    p = q * np.exp(rng.normal(scale=[0.1, 1.0, 2.5][seed % 3], size=6))
    p /= p.sum()

    def divergence(a: np.ndarray, b: np.ndarray, order: float) -> float:
        return float(np.log(np.sum(a**order * b ** (1.0 - order))) / (order - 1.0))

    unsampled = np.array([max(divergence(p, q, o), divergence(q, p, o)) for o in ORDERS[:120]])
    unsampled = np.concatenate([unsampled, np.full(len(ORDERS) - 120, np.inf)])
    moments = np.array([0.0, 0.0, *(divergence(p, q, order) for order in range(2, 13))])
    curve = poisson.integer_curve(rate, unsampled, moments)
    mixed = (1 - rate) * q + rate * p
    for place, order in enumerate(ORDERS[:60]):
        exact = max(divergence(mixed, q, order), divergence(q, mixed, order))
        assert exact <= curve[place] * (1 + 1e-9)
        assert curve[place] <= unsampled[place]
    sampled = curve[ORDERS == 2.0][0]
    if rate == 0.02:  # what the draw gives is not lost: the cost falls with the square of the rate
        chi = np.expm1(divergence(p, q, 2.0))
        assert sampled < 1.1 * rate**2 * chi


def test_any_mechanism_at_the_ends_of_the_rates() -> None:
    unsampled, moments = np.linspace(1.0, 2.0, len(ORDERS)), np.linspace(0.0, 1.0, 20)
    assert np.all(poisson.integer_curve(0.0, unsampled, moments) == 0.0)
    assert np.array_equal(poisson.integer_curve(1.0, unsampled, moments), unsampled)
