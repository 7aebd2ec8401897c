from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from fedsketch.privacy.accounting import skellam
from fedsketch.privacy.accounting.renyi import ORDERS


@pytest.mark.parametrize("mu", [20.0, 300.0])
@pytest.mark.parametrize("shift", [1, 4])
@pytest.mark.parametrize("order", [2, 5, 9])
def test_bounds_the_exact_divergence_by_direct_sum(mu: float, shift: int, order: int) -> None:
    """One coordinate moved by `shift`: sum over the integers of p^alpha q^(1-alpha), from scipy's Bessel functions."""
    x = np.arange(-220, 221)
    log_q = np.log(special.ive(np.abs(x), mu))
    log_p = np.log(special.ive(np.abs(x - shift), mu))
    exact = special.logsumexp(order * log_p + (1 - order) * log_q) / (order - 1)
    bound = skellam.curve(mu, shift, shift, np.array([float(order)]))[0]
    assert exact <= bound
    assert bound <= 1.5 * exact  # and it is not idle


@pytest.mark.parametrize(
    ("mu", "l2", "l1", "order", "expected"),
    [
        (100.0, 3.0, 9.0, 5.0, 0.225 + 135 / 40_000),  # the first of the two prices is the smaller
        (1.0, 1.0, 1.0, 2.0, 1.0 + 1.5),  # the second
    ],
)
def test_closed_form_by_hand(
    mu: float, l2: float, l1: float, order: float, expected: float
) -> None:
    assert skellam.curve(mu, l2, l1, np.array([order]))[0] == pytest.approx(expected, rel=1e-14)


def test_divergence_adds_over_coordinates() -> None:
    """A vector of m ones has D2 = sqrt(m), D1 = m: the exact divergence is m times that of one."""
    mu, order, m = 200.0, 4, 9
    x = np.arange(-200, 201)
    log_q = np.log(special.ive(np.abs(x), mu))
    log_p = np.log(special.ive(np.abs(x - 1), mu))
    one = special.logsumexp(order * log_p + (1 - order) * log_q) / (order - 1)
    bound = skellam.curve(mu, np.sqrt(m), m, np.array([float(order)]))[0]
    assert m * one <= bound <= 1.05 * m * one


def test_no_claim_at_fractional_orders() -> None:
    curve = skellam.curve(1e4, 1.0, 1.0)
    whole = np.round(ORDERS) == ORDERS
    assert np.all(np.isinf(curve[~whole]))
    assert np.all(np.isfinite(curve[whole]))


def test_tends_to_the_gaussian_for_large_variance() -> None:
    orders = np.array([2.0, 32.0, 512.0])
    scaled = skellam.curve(1e6 * 100.0, 1e3, 1e5, orders)  # noise multiplier 10
    np.testing.assert_allclose(scaled, orders / 200.0, rtol=2e-3)


def test_no_noise_is_infinite() -> None:
    assert np.all(np.isinf(skellam.curve(0.0, 1.0, 1.0)))
