from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize, special, stats

from fedsketch.privacy.accounting import coordinate_sampling, pld, renyi
from fedsketch.privacy.accounting.costs import cost
from fedsketch.privacy.accounting.dominating_pairs import PoissonPair
from fedsketch.privacy.accounting.releases import (
    CoordinateSampledGaussian,
    NoSampling,
    Poisson,
    Release,
    WithoutReplacement,
)

MakeRelease = Callable[..., Release]

# Integer orders 2 to 64, and 24 geometric ones up to 512.
DESIGN_ORDERS = np.unique(
    np.concatenate([np.arange(2.0, 65.0), np.round(np.geomspace(64.0, 512.0, 24))])
)


def _noise(rate: float, ratio: float) -> float:
    """sigma / (gamma D2) at epsilon 5, delta 1e-8, one release."""

    def excess(log_noise: float) -> float:
        sigma = math.exp(log_noise) * rate
        curve = coordinate_sampling.curve(sigma, rate, 1.0, 1.0 / ratio, DESIGN_ORDERS)
        return renyi.epsilon(curve, 1e-8, DESIGN_ORDERS) - 5.0

    return math.exp(optimize.brentq(excess, -3.0, 8.0, xtol=1e-10))


@pytest.mark.parametrize(
    ("ratio", "noise"),
    [
        (1, 60.7685),
        (10, 7.1776),
        (30, 2.7560),
        (100, 1.4002),
        (300, 1.2209),
        (1000, 1.1978),
        (3000, 1.1957),
        (10000, 1.1955),
    ],
)
def test_design_numbers_over_the_ratio(ratio: float, noise: float) -> None:
    assert _noise(0.01, ratio) == pytest.approx(noise, abs=6e-5)


@pytest.mark.parametrize(
    ("rate", "noise"), [(0.05, 1.1956), (0.1, 1.1955), (0.5, 1.1954), (1.0, 1.1954)]
)
def test_design_numbers_over_the_rate(rate: float, noise: float) -> None:
    assert _noise(rate, 1000.0) == pytest.approx(noise, abs=6e-5)


def _coordinate(size: float, rate: float, sigma: float, order: float) -> tuple[float, float]:
    """Both exact divergences of one sampled coordinate, by quadrature."""
    x = np.arange(-14 * sigma - 1, 14 * sigma + order * size + 1, sigma / 60)
    log_step = math.log(x[1] - x[0])
    q = stats.norm.logpdf(x, 0.0, sigma)
    p = stats.norm.logpdf(x, size, sigma)
    mixture = np.logaddexp(math.log1p(-rate) + q, math.log(rate) + p)
    forward = (special.logsumexp(order * mixture + (1 - order) * q) + log_step) / (order - 1)
    backward = (special.logsumexp(order * q + (1 - order) * mixture) + log_step) / (order - 1)
    return float(forward), float(backward)


@pytest.mark.parametrize("order", [2.0, 4.0, 7.0])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_bounds_the_exact_divergence_of_a_vector(order: float, rate: float) -> None:
    """Coordinates are independent, so the exact divergence of a vector is the sum over its coordinates."""
    sigma, linf, l2 = 0.8, 0.5, 1.0
    curve = coordinate_sampling.curve(sigma, rate, l2, linf, np.array([order]))[0]
    for vector in ([0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.1], [0.25] * 16):
        exact = [
            sum(parts)
            for parts in zip(*(_coordinate(v, rate, sigma, order) for v in vector), strict=True)
        ]
        assert max(exact) <= curve * (1 + 1e-9)
    worst = 4 * _coordinate(0.5, rate, sigma, order)[0]
    assert curve == pytest.approx(worst, rel=1e-6)  # attained by the flattest vector at Dinf


def test_no_coordinate_is_larger_than_the_vector() -> None:
    orders = np.array([2.0, 8.0])
    loose = coordinate_sampling.curve(1.0, 0.3, 1.0, 5.0, orders)
    np.testing.assert_allclose(loose, coordinate_sampling.curve(1.0, 0.3, 1.0, 1.0, orders))
    assert loose[0] == pytest.approx(_coordinate(1.0, 0.3, 1.0, 2.0)[0], rel=1e-6)


def test_sampling_nothing_or_everything() -> None:
    orders = np.array([2.0, 9.5, 64.0])
    assert np.all(coordinate_sampling.curve(1.0, 0.0, 1.0, 0.1, orders) == 0.0)
    np.testing.assert_allclose(coordinate_sampling.curve(2.0, 1.0, 1.0, 0.1, orders), orders / 8)
    assert np.all(np.isinf(coordinate_sampling.curve(0.0, 0.5, 1.0, 0.1, orders)))


def test_no_vector_is_the_worst_at_every_epsilon() -> None:
    """Why no loss distribution is booked: one large coordinate against sixteen of the same L2 norm, by loss
    distributions."""
    one = pld.loss_distribution(PoissonPair(0.5, 0.1), 1e-3)
    many = pld.loss_distribution(PoissonPair(2.0, 0.1), 1e-3).self_compose(16)
    assert many.get_delta_for_epsilon(0.0) > 1.2 * one.get_delta_for_epsilon(0.0)
    assert one.get_delta_for_epsilon(3.0) > 1.2 * many.get_delta_for_epsilon(3.0)


@pytest.mark.parametrize("rate", [0.05, 0.4])
@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_masks_and_drawn_clients_together(rate: float, sigma: float) -> None:
    """Two numbers of a client that is drawn with this probability, and masked: both exact divergences, by quadrature in
    the plane."""
    mask, size = 0.3, 1.0 / math.sqrt(2)
    x = np.arange(-8 * sigma, 8 * sigma + 3, sigma / 12)
    q = stats.norm.logpdf(x, 0.0, sigma)
    kept = np.logaddexp(math.log1p(-mask) + q, math.log(mask) + stats.norm.logpdf(x, size, sigma))
    without, inside = q[:, None] + q[None, :], kept[:, None] + kept[None, :]
    drawn = np.logaddexp(math.log1p(-rate) + without, math.log(rate) + inside)
    curve = coordinate_sampling.drawn_curve(rate, sigma, mask, 1.0, size)
    cell = 2 * math.log(x[1] - x[0])
    for order in (2.0, 3.0, 4.0):
        there = special.logsumexp(order * drawn + (1 - order) * without) + cell
        back = special.logsumexp(order * without + (1 - order) * drawn) + cell
        bound = curve[order == renyi.ORDERS][0]
        assert max(there, back) / (order - 1) <= bound * (1 + 1e-6)
        unsampled = coordinate_sampling.curve(sigma, mask, 1.0, size)[order == renyi.ORDERS][0]
        assert bound <= unsampled
        if rate == 0.05:  # nearly met
            assert bound < 1.15 * max(there, back) / (order - 1)


def test_the_accountant_takes_drawn_clients_into_account(make_release: MakeRelease) -> None:
    """The smaller of two valid curves: for draws that are secrets, and for draws that show. A fixed-size draw is one
    that shows."""
    law = CoordinateSampledGaussian(0.2, 0.1, 1.0, 0.05)
    plain, poisson_draw, fixed = (
        cost(make_release(law, draw)).curve
        for draw in (NoSampling(), Poisson(0.1), WithoutReplacement(10, 100))
    )
    assert np.all(poisson_draw <= fixed)
    assert np.all(fixed <= plain)
    place = np.flatnonzero(renyi.ORDERS == 4.0)[0]
    assert poisson_draw[place] < 0.3 * fixed[place] < 0.1 * plain[place]
    missed = cost(make_release(law, Poisson(0.1, missed=0.05))).curve
    assert poisson_draw[place] < missed[place] < plain[place]


@pytest.mark.parametrize("rate", [0.1, 0.7])
def test_theorem_5_1_holds_with_equality_for_one_large_coordinate(rate: float) -> None:
    """Matrix factorisation: a unit in row t adds x times column t of C with probability gamma. Both divergences on a
    grid in the plane."""
    column, size, sigma = np.array([0.8, 0.9]), 0.7, 1.1
    norm = float(np.linalg.norm(column))
    axis = np.arange(-12.0, 14.0, 0.04)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    without = stats.norm.logpdf(x, 0, sigma) + stats.norm.logpdf(y, 0, sigma)
    moved = [stats.norm.logpdf(z, size * c, sigma) for z, c in ((x, column[0]), (y, column[1]))]
    there = np.logaddexp(np.log1p(-rate) + without, np.log(rate) + moved[0] + moved[1])
    orders = np.array([2.0, 3.0, 8.0])
    bound = coordinate_sampling.curve(sigma, rate, norm * size, norm * size, orders)
    for order, most in zip(orders, bound, strict=True):
        for p, q in ((there, without), (without, there)):
            log_moment = special.logsumexp(order * p - (order - 1) * q) + 2 * math.log(0.04)
            assert log_moment / (order - 1) <= most * (1 + 1e-6)
        exact = special.logsumexp(order * there - (order - 1) * without) + 2 * math.log(0.04)
        assert exact / (order - 1) == pytest.approx(most, rel=1e-6)
