from __future__ import annotations

import math

import pytest

from fedsketch.privacy.accounting import exact_gaussian
from fedsketch.privacy.accounting.dome_theorem import paper_noise_multiplier


@pytest.mark.parametrize(
    ("epsilon", "sigma"), [(1.0, 9.597), (2.0, 4.799), (4.0, 2.399), (8.0, 1.200)]
)
def test_design_numbers_of_one_composition(epsilon: float, sigma: float) -> None:
    ours = paper_noise_multiplier(epsilon=epsilon, delta=1e-5, compositions=1)
    assert ours == pytest.approx(sigma, abs=5e-4)


def test_design_number_of_a_hundred_compositions() -> None:
    ours = paper_noise_multiplier(epsilon=4.0, delta=1e-5, compositions=100)
    assert ours == pytest.approx(23.992630, abs=5e-7)


def test_between_zcdp_and_the_exact_gaussian_the_theorem_is_the_loosest() -> None:
    """Exact 10.811618 < zCDP 12.960764 (Bun and Steinke) < the theorem."""
    log = math.log(1e5)
    rho = (math.sqrt(log + 4.0) - math.sqrt(log)) ** 2  # rho + 2 sqrt(rho log(1/delta)) = 4
    zcdp = math.sqrt(100 / (2 * rho))
    assert zcdp == pytest.approx(12.960764, abs=5e-7)
    paper = paper_noise_multiplier(epsilon=4.0, delta=1e-5, compositions=100)
    assert (
        exact_gaussian.epsilon(10.0 / paper, 1e-5) < exact_gaussian.epsilon(10.0 / zcdp, 1e-5) < 4.0
    )


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="epsilon > 0"):
        paper_noise_multiplier(epsilon=0.0, delta=1e-5, compositions=1)
