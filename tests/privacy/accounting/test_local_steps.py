"""Steps of local training as releases: T of them in a round, with batches that the device draws itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedsketch.errors import UnsupportedReleaseError
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.calibration import calibrate
from fedsketch.privacy.accounting.classic_conversion import classic_epsilon
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    DrawnBy,
    Gaussian,
    Poisson,
    Release,
    Unit,
)

DELTA, ROUNDS = 1e-5, 80


def steps(sigma: float, rate: float = 0.05, times: int = 5) -> Release:
    own = Poisson(rate, Unit.EXAMPLE, DrawnBy.DEVICE)
    return Release(Gaussian(sigma), own, Adjacency.ZERO_OUT, Unit.EXAMPLE, Adversary.SERVER, times)


def spent(release: Release, count: int, *, tight: bool = False) -> float:
    accountant = Accountant(DELTA)
    accountant.record(release, count)
    return accountant.epsilon(tight=tight).epsilon


def test_steps_times_rounds_are_so_many_releases() -> None:
    one = replace(steps(4.0), times=1)
    assert spent(steps(4.0, times=5), ROUNDS) == spent(one, 5 * ROUNDS)
    assert spent(steps(4.0, times=5), ROUNDS, tight=True) == spent(one, 5 * ROUNDS, tight=True)
    accountant = Accountant(DELTA)
    accountant.record(steps(4.0, times=5), ROUNDS)
    assert accountant.releases == 400
    assert Accountant.from_json(accountant.to_json()).epsilon() == accountant.epsilon()


# The values of the preprint (Table 2, B = 250 of 5,000, T = 5, 80 rounds), and the same curves by Canonne et al.'s
# conversion.
@pytest.mark.parametrize(
    ("sigma", "classic", "modern"),
    [(4, 1.287, 1.057), (6, 0.835, 0.668), (8, 0.619, 0.486), (10, 0.492, 0.380)],
)
def test_classic_conversion_gives_the_papers_epsilons(
    sigma: int, classic: float, modern: float
) -> None:
    assert classic_epsilon(steps(sigma), ROUNDS, DELTA) == pytest.approx(classic, abs=6e-4)
    assert spent(steps(sigma), ROUNDS) == pytest.approx(modern, abs=6e-4)


def test_steps_cost_what_dp_accounting_says() -> None:
    dp_accounting = pytest.importorskip("dp_accounting")
    reference = dp_accounting.rdp.RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(4.0))
    reference.compose(event, 125 * ROUNDS)
    expected = reference.get_epsilon(DELTA)
    # Our orders are a superset of its default ones.
    ours = spent(steps(4.0, 0.01, 125), ROUNDS)
    assert ours == pytest.approx(expected, rel=2e-3)
    assert ours <= expected * (1 + 1e-9)


def test_a_draw_of_the_coordinator_hides_nothing_from_it_and_one_of_the_device_does() -> None:
    assert spent(steps(4.0), 1) > 0
    coordinator = replace(steps(4.0), sampling=Poisson(0.05, of=Unit.EXAMPLE))
    with pytest.raises(UnsupportedReleaseError, match="the server picks"):
        spent(coordinator, 1)


def test_a_draw_of_examples_hides_no_client_whoever_makes_it() -> None:
    with pytest.raises(UnsupportedReleaseError, match="hides no client"):
        spent(replace(steps(4.0), unit=Unit.CLIENT), 1)


def test_calibration_meets_a_budget_for_all_steps() -> None:
    z = calibrate(steps, rounds=ROUNDS, epsilon=1.0, delta=DELTA)
    assert spent(steps(z), ROUNDS, tight=True) <= 1.0
    assert spent(steps(0.999 * z), ROUNDS, tight=True) > 1.0


def test_calibration_by_another_price_meets_that_price() -> None:
    z = calibrate(steps, rounds=ROUNDS, epsilon=1.287, delta=DELTA, price=classic_epsilon)
    assert z == pytest.approx(4.0, rel=2e-3)
    assert classic_epsilon(steps(z), ROUNDS, DELTA) <= 1.287
