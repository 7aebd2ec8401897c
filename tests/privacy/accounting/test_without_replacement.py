from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as reference
from scipy import special, stats

from fedsketch.privacy.accounting import costs, poisson, without_replacement
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Gaussian,
    Release,
    Unit,
    WithoutReplacement,
)
from fedsketch.privacy.accounting.renyi import ORDERS


@pytest.mark.parametrize(
    ("rate", "noise_multiplier"), [(0.1, 1.0), (0.01, 0.5), (0.1, 5.0), (0.1, 50.0), (0.3, 2.0)]
)
def test_agrees_with_dp_accounting(rate: float, noise_multiplier: float) -> None:
    """dp-accounting takes the noise over the replace-one sensitivity; a curve above the unsampled one is cut here."""
    orders = np.array([1.5, 2.0, 3.0, 4.7, 8.0, 20.0, 41.0, 300.0])
    theirs = reference._compute_rdp_sample_wor_gaussian(rate, noise_multiplier, orders)
    theirs = np.minimum(theirs, orders / (2 * noise_multiplier**2))
    ours = without_replacement.gaussian(rate, noise_multiplier, orders)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def _mixture(values: list[float], size: int, sigma: float, grid: np.ndarray) -> np.ndarray:
    """Log density of the sum of a random subset plus noise."""
    samples = [sum(chosen) for chosen in combinations(values, size)]
    return special.logsumexp(
        [stats.norm.logpdf(grid, mean, sigma) for mean in samples], axis=0
    ) - np.log(len(samples))


def _divergence(p: np.ndarray, q: np.ndarray, order: float, step: float) -> float:
    return float((special.logsumexp(order * p + (1 - order) * q) + np.log(step)) / (order - 1))


@pytest.mark.parametrize("others", [[1.0] * 4, [-1.0] * 4, [1.0, -1.0, 0.3, -0.8]])
@pytest.mark.parametrize("sigma", [1.5, 4.0])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_bounds_brute_force_mechanism(
    others: list[float], sigma: float, adjacency: Adjacency
) -> None:
    """All subsets of 2 of 5 numbers in [-1, 1] with noise sigma: the exact divergences, by quadrature, stay below the
    curve."""
    step = sigma / 40
    grid = np.arange(-12 * sigma - 3, 12 * sigma + 3, step)
    release = Release(
        Gaussian(sigma), WithoutReplacement(2, 5), adjacency, Unit.CLIENT, Adversary.MODEL
    )
    curve = costs.cost(release).curve
    with_unit = _mixture([*others, 1.0], 2, sigma, grid)
    neighbour = {
        Adjacency.ADD_OR_REMOVE: others,
        Adjacency.ZERO_OUT: [*others, 0.0],
        Adjacency.REPLACE_ONE: [*others, -1.0],
    }[adjacency]
    without = _mixture(neighbour, 2, sigma, grid)
    for order in (2.0, 3.0, 5.0, 8.0):
        bound = curve[np.flatnonzero(order == ORDERS)[0]]
        assert _divergence(with_unit, without, order, step) <= bound
        assert _divergence(without, with_unit, order, step) <= bound


@pytest.mark.parametrize("sigma", [0.7, 1.5, 6.0])
@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_no_direction_of_the_other_units_breaks_the_zero_out_curve(
    sigma: float, rate: float
) -> None:
    """The triple (x_i, 0, x_j) in the plane, x_i of several lengths, x_j all around and inside: exact divergences in
    both directions."""
    grid = np.arange(-10 * sigma - 2, 10 * sigma + 8, sigma / 8)
    x, y = np.meshgrid(grid, grid)
    log_area = 2 * np.log(sigma / 8)

    def density(a: float, b: float) -> np.ndarray:
        return -((x - a) ** 2 + (y - b) ** 2) / (2 * sigma**2) - np.log(2 * np.pi * sigma**2)

    curve = without_replacement.zero_out(rate, sigma)
    bound = {order: curve[np.flatnonzero(order == ORDERS)[0]] for order in (2.0, 3.0, 4.0)}
    for length in (0.4, 1.0):
        for angle in np.linspace(0, np.pi, 5):
            for radius in (0.3, 1.0):
                other = density(radius * np.cos(angle), radius * np.sin(angle)) + np.log1p(-rate)
                p = np.logaddexp(other, density(length, 0.0) + np.log(rate))
                q = np.logaddexp(other, density(0.0, 0.0) + np.log(rate))
                for order, limit in bound.items():
                    for first, second in ((p, q), (q, p)):
                        inside = special.logsumexp(order * first + (1 - order) * second) + log_area
                        assert inside / (order - 1) <= limit * (1 + 1e-9)


def test_zero_out_curve_tends_to_the_poisson_one_with_much_noise() -> None:
    orders = np.array([2.0, 4.0, 8.0])
    ours = without_replacement.zero_out(0.1, 40.0, orders)
    np.testing.assert_allclose(ours, poisson.gaussian(0.1, 40.0, orders), rtol=0.02)


def test_poisson_formula_is_not_enough_for_a_fixed_size_sample() -> None:
    """Why add/remove is charged at twice the sensitivity: with opposite others the plain Poisson curve is below the
    truth."""
    sigma, step = 4.0, 0.1
    grid = np.arange(-60.0, 60.0, step)
    with_unit = _mixture([-1.0] * 4 + [1.0], 2, sigma, grid)
    without = _mixture([-1.0] * 4, 2, sigma, grid)
    plain = poisson.gaussian(0.4, sigma, np.array([2.0]))[0]
    assert _divergence(with_unit, without, 2.0, step) > 2 * plain


def test_a_sample_of_everyone_is_no_sample() -> None:
    np.testing.assert_allclose(without_replacement.gaussian(1.0, 2.0), ORDERS / 8.0)
    unsampled = ORDERS / 8.0
    assert without_replacement.general(1.0, unsampled, unsampled) is unsampled


def test_general_theorem_is_never_below_the_gaussian_one() -> None:
    every = np.arange(1025.0) / (2 * 3.0**2)
    general = without_replacement.general(0.1, ORDERS / 18.0, every)
    special = without_replacement.gaussian(0.1, 3.0)
    assert np.all(general >= special * (1 - 1e-12))
    assert general[np.flatnonzero(ORDERS == 2.0)[0]] < 0.2 * 2.0 / 18.0
