from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedsketch.privacy.mechanisms.gaussian import add_gaussian
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key


@pytest.mark.parametrize("std", [1e-3, 1.0, 47.0])
def test_drawn_noise_has_the_booked_variance(std: float) -> None:
    """Chi-square with 300,000 degrees of freedom; false alarm 1e-6."""
    vector = np.linspace(-3, 3, 300_000)
    noise = add_gaussian(vector, std, Stream(derived_key(3, "variance"))) - vector
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], vector.size)
    assert low < np.sum((noise / std) ** 2) < high


def test_shares_of_clients_add_up_to_the_noise_of_the_sum() -> None:
    """Ten clients with std z C / sqrt(n): the sum has z C. False alarm 1e-6."""
    n, z, size = 10, 3.0, 100_000
    total = sum(
        add_gaussian(np.zeros(size), z / math.sqrt(n), Stream(derived_key(4, client)))
        for client in range(n)
    )
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], size)
    assert low < np.sum((np.asarray(total) / z) ** 2) < high


def test_shape_and_input_are_kept() -> None:
    vector = np.ones((3, 5), dtype=np.float32)
    noised = add_gaussian(vector, 1.0, Stream())
    assert noised.shape == (3, 5)
    assert noised.dtype == np.float64
    assert np.all(vector == 1.0)


def test_no_noise_changes_nothing() -> None:
    vector = np.arange(5.0)
    same = add_gaussian(vector, 0.0, Stream())
    assert np.array_equal(same, vector)
    assert same is not vector


@pytest.mark.parametrize("std", [-1.0, math.nan, math.inf])
def test_impossible_noise_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="standard deviation"):
        add_gaussian(np.zeros(3), std, Stream())
