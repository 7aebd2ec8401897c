from __future__ import annotations

import math

import dp_accounting
import mpmath
import pytest

from fedsketch.privacy.accounting import exact_gaussian


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 1.0811618, 7.0, 300.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-12])
def test_agrees_with_dp_accounting(sigma: float, delta: float) -> None:
    ours = exact_gaussian.epsilon(1.0 / sigma, delta)
    assert ours == pytest.approx(dp_accounting.get_epsilon_gaussian(sigma, delta), abs=1e-9)


def test_design_number_of_the_exact_gaussian() -> None:
    """A noise multiplier of 10.811618 over 100 rounds is epsilon 4 at delta 1e-5."""
    assert exact_gaussian.epsilon(10.0 / 10.811618, 1e-5) == pytest.approx(4.0, abs=5e-7)
    assert exact_gaussian.epsilon(10.0 / 10.811617, 1e-5) > 4.0


@pytest.mark.parametrize(
    ("epsilon", "sigma"), [(1.0, 3.731), (2.0, 1.994), (4.0, 1.081), (8.0, 0.600)]
)
def test_design_numbers_of_one_release(epsilon: float, sigma: float) -> None:
    """The exact sigma at delta 1e-5, to the printed digits."""
    assert exact_gaussian.epsilon(1.0 / (sigma + 5e-4), 1e-5) < epsilon
    assert exact_gaussian.epsilon(1.0 / (sigma - 5e-4), 1e-5) > epsilon


@pytest.mark.parametrize("x", [-200.0, -38.0, -30.0001, -29.9, -5.0, 0.0, 3.0])
def test_log_normal_cdf_matches_high_precision(x: float) -> None:
    with mpmath.workdps(60):
        exact = float(mpmath.log(mpmath.erfc(-mpmath.mpf(x) / mpmath.sqrt(2)) / 2))
    assert exact_gaussian.log_normal_cdf(x) == pytest.approx(exact, rel=1e-11, abs=1e-300)


def test_no_noise_is_infinite_and_no_release_is_free() -> None:
    assert exact_gaussian.epsilon(math.inf, 1e-5) == math.inf
    assert exact_gaussian.epsilon(0.0, 1e-5) == 0.0


def test_negligible_release_costs_nothing() -> None:
    assert exact_gaussian.epsilon(1e-9, 1e-5) == 0.0
