from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsketch.errors import ImpossibleBudgetError
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.calibration import calibrate, calibrate_skellam
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    CoordinateSampledGaussian,
    FullPasses,
    Gaussian,
    NoSampling,
    Poisson,
    Release,
    SecretDraw,
    Unit,
    WithoutReplacement,
)

MakeRelease = Callable[..., Release]


def _gaussian(z: float, sampling: SecretDraw) -> Release:
    return Release(Gaussian(z), sampling, Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.MODEL)


def _epsilon(release: Release, rounds: int, delta: float, *, tight: bool = True) -> float:
    accountant = Accountant(delta)
    accountant.record(release, rounds)
    return accountant.epsilon(tight=tight).epsilon


def test_design_number_of_the_exact_gaussian() -> None:
    z = calibrate(lambda z: _gaussian(z, NoSampling()), rounds=100, epsilon=4.0, delta=1e-5)
    assert z == pytest.approx(10.811618, abs=6e-7)


@settings(max_examples=30, deadline=None)
@given(
    sampling=st.one_of(
        st.just(NoSampling()),
        st.builds(FullPasses, st.integers(1, 100)),
        st.builds(Poisson, st.floats(0.001, 1.0)),
        st.builds(WithoutReplacement, st.integers(1, 50), st.just(50)),
    ),
    rounds=st.integers(1, 1000),
    epsilon=st.floats(0.05, 30.0),
    delta=st.sampled_from([1e-3, 1e-5, 1e-8]),
)
def test_calibration_inverts_accounting(
    sampling: SecretDraw, rounds: int, epsilon: float, delta: float
) -> None:
    z = calibrate(
        lambda z: _gaussian(z, sampling), rounds=rounds, epsilon=epsilon, delta=delta, tight=False
    )
    assert _epsilon(_gaussian(z, sampling), rounds, delta, tight=False) <= epsilon
    less = _gaussian(z * (1 - 1e-4), sampling)
    assert _epsilon(less, rounds, delta, tight=False) > epsilon


def test_tight_calibration_fits_and_needs_less_noise() -> None:
    def template(z: float) -> Release:
        return _gaussian(z, Poisson(0.2))

    fine = calibrate(template, rounds=50, epsilon=1.0, delta=1e-5)
    coarse = calibrate(template, rounds=50, epsilon=1.0, delta=1e-5, tight=False)
    assert fine < 0.97 * coarse
    assert _epsilon(template(fine), 50, 1e-5) <= 1.0
    assert _epsilon(template(fine * (1 - 1e-4)), 50, 1e-5) > 1.0


def test_calibrates_any_monotone_release(make_release: MakeRelease) -> None:
    def template(z: float) -> Release:
        return make_release(CoordinateSampledGaussian(z * 0.1, 0.1, 1.0, 0.01))

    z = calibrate(template, rounds=10, epsilon=3.0, delta=1e-6)
    assert _epsilon(template(z), 10, 1e-6) <= 3.0 < _epsilon(template(0.9999 * z), 10, 1e-6)


def test_skellam_variance_inverts_accounting(make_release: MakeRelease) -> None:
    from fedsketch.privacy.accounting.releases import Skellam

    variance = calibrate_skellam(
        make_release,
        l2_sensitivity=4100.0,
        l1_sensitivity=41000.0,
        rounds=100,
        epsilon=4.0,
        delta=1e-5,
    )
    fits = make_release(Skellam(variance, 4100.0, 41000.0))
    less = make_release(Skellam(0.9999 * variance, 4100.0, 41000.0))
    assert _epsilon(fits, 100, 1e-5) <= 4.0 < _epsilon(less, 100, 1e-5)


@pytest.mark.parametrize("sampling", [NoSampling(), Poisson(0.1), WithoutReplacement(10, 100)])
def test_renyi_calibration_takes_well_under_a_second(sampling: SecretDraw) -> None:
    calibrate(lambda z: _gaussian(z, sampling), rounds=2, epsilon=4.0, delta=1e-5, tight=False)
    begun = time.process_time()
    calibrate(lambda z: _gaussian(z, sampling), rounds=99, epsilon=4.1, delta=1e-5, tight=False)
    assert time.process_time() - begun < 1.0


def test_infinite_epsilon_needs_no_noise() -> None:
    z = calibrate(lambda z: _gaussian(z, NoSampling()), rounds=5, epsilon=math.inf, delta=1e-5)
    assert z == 0.0


def test_impossible_budget_says_what_is_possible() -> None:
    def template(z: float) -> Release:
        return _gaussian(z, NoSampling())

    with pytest.raises(ImpossibleBudgetError, match="rounds would fit") as caught:
        calibrate(template, rounds=1000, epsilon=2.0, delta=1e-5, largest=10.0)
    message = str(caught.value)
    possible = int(message.split("; ")[1].split()[0])
    assert (
        _epsilon(template(10.0), possible, 1e-5)
        <= 2.0
        < _epsilon(template(10.0), possible + 1, 1e-5)
    )
    least = float(message.split("gives ")[1].split(";")[0])
    assert least == pytest.approx(_epsilon(template(10.0), 1000, 1e-5), rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_epsilon_must_be_positive(epsilon: float) -> None:
    with pytest.raises(ImpossibleBudgetError, match="positive"):
        calibrate(lambda z: _gaussian(z, NoSampling()), rounds=1, epsilon=epsilon, delta=1e-5)


def test_a_run_has_rounds() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        calibrate(lambda z: _gaussian(z, NoSampling()), rounds=0, epsilon=1.0, delta=1e-5)
