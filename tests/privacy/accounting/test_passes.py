"""What full passes cost, and releases whose noise is correlated within a pass."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest

from fedsketch.errors import UnsupportedReleaseError
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import (
    CoordinateSampledGaussian,
    FullPasses,
    MatrixGaussian,
    Skellam,
)
from tests.privacy.accounting.spending import DELTA, MakeRelease, gaussian_release, spent_by

# Full passes


@pytest.mark.parametrize(
    ("rounds", "passes"), [(1, 1), (59, 1), (60, 1), (61, 2), (180, 3), (181, 4)]
)
def test_full_passes_charge_passes_not_rounds(rounds: int, passes: int) -> None:
    at_once = spent_by(gaussian_release(3.0, FullPasses(60)), rounds)
    assert at_once.epsilon == pytest.approx(
        spent_by(gaussian_release(3.0), passes).epsilon, abs=1e-12
    )
    one_by_one = Accountant(DELTA)
    for _ in range(rounds):
        one_by_one.record(gaussian_release(3.0, FullPasses(60)))
    assert one_by_one.epsilon().epsilon == pytest.approx(at_once.epsilon, abs=1e-12)


def test_full_passes_save_sqrt_rounds_per_pass_of_noise() -> None:
    per_round = spent_by(gaussian_release(3.0 * math.sqrt(60)), 180).epsilon
    assert spent_by(gaussian_release(3.0, FullPasses(60)), 180).epsilon == pytest.approx(
        per_round, rel=1e-9
    )


def test_a_pass_costs_its_most_expensive_round() -> None:
    accountant = Accountant(DELTA)
    for z in (3.0, 2.0, 5.0, 4.0):
        accountant.record(gaussian_release(z, FullPasses(4)))
    assert accountant.epsilon().epsilon == pytest.approx(
        spent_by(gaussian_release(2.0)).epsilon, abs=1e-12
    )


def test_passes_compose_with_other_releases(make_release: MakeRelease) -> None:
    accountant = Accountant(DELTA)
    accountant.record(gaussian_release(3.0, FullPasses(10)), 15)
    accountant.record(gaussian_release(6.0), 4)  # two passes begun, and four releases
    equal = spent_by(gaussian_release((2 / 9 + 4 / 36) ** -0.5)).epsilon
    assert accountant.epsilon().epsilon == pytest.approx(equal, abs=1e-9)


def test_another_pass_length_or_mechanism_within_a_pass_is_refused(
    make_release: MakeRelease,
) -> None:
    accountant = Accountant(DELTA)
    accountant.record(gaussian_release(3.0, FullPasses(10)), 5)
    before = accountant.epsilon()
    with pytest.raises(UnsupportedReleaseError, match="finish it first"):
        accountant.record(gaussian_release(3.0, FullPasses(5)))
    with pytest.raises(UnsupportedReleaseError, match="finish it first"):
        accountant.record(make_release(Skellam(1e9, 1.0, 1.0), FullPasses(10)))
    assert accountant.epsilon() == before
    accountant.record(gaussian_release(3.0, FullPasses(10)), 5)
    accountant.record(gaussian_release(3.0, FullPasses(5)))  # the pass is over: now it is fine


# The matrix mechanism


def test_matrix_release_costs_one_gaussian_per_pass(make_release: MakeRelease) -> None:
    """Independent computation: one unit moves row j of X by C, hence the release A X + B Z by A e_j, whose Mahalanobis
    length under the covariance sigma^2 B B^T is the mu of a Gaussian mechanism."""
    rounds, sigma = 8, 2.5
    a = np.tril(np.ones((rounds, rounds)))
    c = np.tril(np.array([[0.8 ** (i - j) for j in range(rounds)] for i in range(rounds)]))
    b = a @ np.linalg.inv(c)
    covariance = sigma**2 * b @ b.T
    mu = max(math.sqrt(a[:, j] @ np.linalg.solve(covariance, a[:, j])) for j in range(rounds))
    column_norm = float(np.linalg.norm(c, axis=0).max())
    release = make_release(MatrixGaussian(sigma, column_norm), FullPasses(rounds))
    expected = dp_accounting.get_epsilon_gaussian(1 / (mu * math.sqrt(3)), DELTA)
    assert spent_by(release, 3 * rounds).epsilon == pytest.approx(expected, abs=1e-9)
    assert spent_by(release, 2 * rounds + 1).epsilon == pytest.approx(expected, abs=1e-9)


def test_matrix_release_needs_one_noise_per_pass_and_full_passes(make_release: MakeRelease) -> None:
    with pytest.raises(UnsupportedReleaseError, match="FullPasses"):
        spent_by(make_release(MatrixGaussian(1.0, 1.5)))
    accountant = Accountant(DELTA)
    accountant.record(make_release(MatrixGaussian(1.0, 1.5), FullPasses(4)))
    with pytest.raises(UnsupportedReleaseError, match="correlated"):
        accountant.record(make_release(MatrixGaussian(2.0, 1.5), FullPasses(4)))


def test_sampled_coordinates_under_a_matrix_cost_both_bounds_times_the_column_norm(
    make_release: MakeRelease,
) -> None:
    plain = CoordinateSampledGaussian(1.0, 0.1, 1.5, 0.15)
    correlated = CoordinateSampledGaussian(1.0, 0.1, 1.0, 0.1, column_norm=1.5)
    expected = spent_by(make_release(plain), 3).epsilon
    assert spent_by(make_release(correlated, FullPasses(4)), 12).epsilon == pytest.approx(expected)
    with pytest.raises(UnsupportedReleaseError, match="FullPasses"):
        spent_by(make_release(correlated))
    accountant = Accountant(DELTA)
    accountant.record(make_release(correlated, FullPasses(4)))
    with pytest.raises(UnsupportedReleaseError, match="correlated"):
        accountant.record(make_release(dataclasses.replace(correlated, sigma=2.0), FullPasses(4)))
