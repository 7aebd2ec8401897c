"""The accountant: agreement with dp-accounting, refusals, its state, and what makes epsilon grow."""

from __future__ import annotations

import json
import math

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsketch.errors import UnsupportedReleaseError
from fedsketch.privacy.accounting import poisson
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.costs import cost
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
    Skellam,
    SketchedGaussian,
    SketchKnowledge,
    Unit,
    WithoutReplacement,
)
from fedsketch.privacy.accounting.renyi import ORDERS
from tests.privacy.accounting.spending import DELTA, MakeRelease, gaussian_release, spent_by

# Agreement with dp-accounting


@pytest.mark.parametrize("z", [0.5, 2.0, 11.577693])
def test_unsampled_gaussian_is_exact(z: float) -> None:
    expected = dp_accounting.get_epsilon_gaussian(z / 10, DELTA)
    spent = spent_by(gaussian_release(z), 100)
    assert spent.epsilon == pytest.approx(expected, abs=1e-6)
    assert spent.method == "gaussian"


@pytest.mark.parametrize(("rate", "z", "rounds"), [(0.1, 5.0, 100), (0.5, 10.0, 150)])
def test_poisson_gaussian_agrees_with_dp_accountings_pld(
    rate: float, z: float, rounds: int
) -> None:
    accountant = dp_accounting.pld.PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z))
    accountant.compose(event, rounds)
    spent = spent_by(gaussian_release(z, Poisson(rate)), rounds)
    assert spent.method == "pld"
    # Both round up, and ours on a coarser grid.
    assert spent.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=3e-5)


def test_mixed_gaussians_agree_with_dp_accountings_pld() -> None:
    theirs = dp_accounting.pld.PLDAccountant()
    theirs.compose(dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(4.0)), 20)
    theirs.compose(dp_accounting.GaussianDpEvent(9.0), 3)
    ours = Accountant(DELTA)
    ours.record(gaussian_release(4.0, Poisson(0.2)), 20)
    ours.record(gaussian_release(9.0), 3)
    assert ours.epsilon().epsilon == pytest.approx(theirs.get_epsilon(DELTA), rel=3e-5)


def test_design_number_of_the_pld() -> None:
    """At z = 11.577693 the PLD accountant says 3.697, and so does the exact Gaussian."""
    theirs = dp_accounting.pld.PLDAccountant()
    theirs.compose(dp_accounting.GaussianDpEvent(11.577693), 100)
    assert theirs.get_epsilon(DELTA) == pytest.approx(3.697, abs=5e-4)
    assert spent_by(gaussian_release(11.577693), 100).epsilon == pytest.approx(3.697, abs=5e-4)


def test_replace_one_doubles_the_sensitivity(make_release: MakeRelease) -> None:
    theirs = dp_accounting.pld.PLDAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    theirs.compose(dp_accounting.GaussianDpEvent(8.0), 9)
    ours = spent_by(make_release(Gaussian(8.0), adjacency=Adjacency.REPLACE_ONE), 9)
    assert ours.epsilon == pytest.approx(theirs.get_epsilon(DELTA), abs=1e-6)
    skellam = make_release(Skellam(1e8, 1e3, 1e4), adjacency=Adjacency.REPLACE_ONE)
    assert spent_by(skellam) == spent_by(make_release(Skellam(1e8, 2e3, 2e4)))


def test_skellam_on_samples_costs_less_than_without_and_what_the_gaussian_does(
    make_release: MakeRelease,
) -> None:
    """At noise multiplier 2 and a large scale Skellam is nearly Gaussian; Poisson and fixed-size samples amplify
    both. Fixed-size samples with Gaussian noise are composed more tightly."""
    mechanism = Skellam((2.0 * 4096.0) ** 2, 4096.0, 4096.0 * 10)
    for sampling, looser in ((Poisson(0.02), 1.001), (WithoutReplacement(2, 100), 1.05)):
        sampled = spent_by(make_release(mechanism, sampling), 100).epsilon
        gaussian = spent_by(make_release(Gaussian(2.0), sampling), 100).epsilon
        assert gaussian * (1 - 1e-6) < sampled < looser * gaussian
        assert sampled < 0.2 * spent_by(make_release(mechanism), 100).epsilon


def test_skellam_examples_may_be_added_or_removed(make_release: MakeRelease) -> None:
    """An example's device is there anyway, with its noise; a fixed-size sample is charged at twice the sensitivity."""
    terms = {"unit": Unit.EXAMPLE, "adjacency": Adjacency.ADD_OR_REMOVE}
    plain = spent_by(make_release(Skellam(1e8, 1e3, 1e4), **terms))
    assert plain == spent_by(make_release(Skellam(1e8, 1e3, 1e4)))
    draw = WithoutReplacement(5, 50, of=Unit.EXAMPLE)
    fixed = make_release(Skellam(1e8, 1e3, 1e4), draw, **terms)
    assert spent_by(fixed) == spent_by(make_release(Skellam(1e8, 2e3, 2e4), Poisson(0.1)))


def _moment(epsilon: float, rate: float, order: float) -> float:
    return math.log(1 - rate + rate * math.exp((order - 1) * epsilon)) / (order - 1)


@pytest.mark.parametrize("sampling", [Poisson(0.25), WithoutReplacement(2, 8)])
def test_drawing_whole_clients_hides_an_example_less_than_drawing_examples(
    make_release: MakeRelease, sampling: SecretDraw
) -> None:
    """Independent computation: an example in a client whose other examples sum to 6 comes and goes with them. By
    quadrature the exact divergence is above the Poisson curve and below what is charged."""
    z, order, step = 2.0, 2.0, 0.01
    x = np.arange(-40.0, 60.0, step)

    def density(mean: float) -> np.ndarray:
        return np.exp(-((x - mean) ** 2) / (2 * z**2)) / (z * math.sqrt(2 * math.pi))

    with_unit = 0.75 * density(0.0) + 0.25 * density(7.0)
    without = 0.75 * density(0.0) + 0.25 * density(6.0)
    exact = math.log(np.sum(with_unit**order * without ** (1 - order)) * step) / (order - 1)
    clients = cost(make_release(Gaussian(z), sampling, unit=Unit.EXAMPLE)).curve
    examples = poisson.gaussian(0.25, z)
    index = int(np.flatnonzero(order == ORDERS)[0])
    assert examples[index] < exact <= clients[index]
    assert clients[index] == pytest.approx(_moment(order / (2 * z**2), 0.25, order), rel=1e-12)
    assert np.all(clients <= ORDERS / (2 * z**2) * (1 + 1e-12))


def test_any_mechanism_gains_something_from_a_secret_draw(make_release: MakeRelease) -> None:
    mechanism = CoordinateSampledGaussian(0.1, 0.1, 1.0, 0.05)
    sampled = spent_by(make_release(mechanism, Poisson(0.1)), 10).epsilon
    assert sampled < 0.6 * spent_by(make_release(mechanism), 10).epsilon
    assert spent_by(make_release(mechanism, Poisson(1.0))) == spent_by(make_release(mechanism))
    assert spent_by(make_release(mechanism, Poisson(0.0))).epsilon == 0.0


def test_renyi_only_is_never_smaller() -> None:
    release = gaussian_release(2.0, Poisson(0.1))
    assert spent_by(release, 50, tight=False).method == "rdp"
    assert spent_by(release, 50, tight=False).epsilon > spent_by(release, 50).epsilon


# Refusals

_SECRET = SketchedGaussian(3.0, 100, 10, SketchKnowledge.SECRET)
_CSGM = CoordinateSampledGaussian(1.0, 0.1, 1.0, 0.1)


@pytest.mark.parametrize(
    ("mechanism", "terms", "says"),
    [
        (Gaussian(1.0), {"sampling": Poisson(0.1), "adversary": Adversary.SERVER}, "NoSampling"),
        (
            Gaussian(1.0),
            {"sampling": WithoutReplacement(1, 9), "adversary": Adversary.SERVER},
            "NoSampling",
        ),
        (
            Gaussian(1.0),
            {"sampling": FullPasses(9), "adversary": Adversary.server(3)},
            "NoSampling",
        ),
        (
            Gaussian(1.0),
            {"sampling": FullPasses(9), "adjacency": Adjacency.ADD_OR_REMOVE},
            "zero-out",
        ),
        (Gaussian(1.0), {"sampling": Poisson(0.1), "adjacency": Adjacency.REPLACE_ONE}, "zero-out"),
        (
            Skellam(1e6, 9.0, 9.0),
            {"sampling": Poisson(0.1), "adjacency": Adjacency.REPLACE_ONE},
            "zero-out",
        ),
        (Skellam(1e6, 9.0, 9.0), {"adjacency": Adjacency.ADD_OR_REMOVE}, "also removes its noise"),
        (_CSGM, {"adversary": Adversary.SERVER}, "trusted"),
        (
            _CSGM,
            {"sampling": WithoutReplacement(1, 9), "adjacency": Adjacency.ADD_OR_REMOVE},
            "who else is drawn",
        ),
        (Gaussian(1.0), {"sampling": Poisson(0.1, of=Unit.EXAMPLE)}, "hides no client"),
        (Gaussian(1.0), {"sampling": WithoutReplacement(1, 9, of=Unit.EXAMPLE)}, "hides no client"),
        (_CSGM, {"adjacency": Adjacency.REPLACE_ONE}, "zero-out"),
        (_SECRET, {"adversary": Adversary.SERVER}, "r_public"),
        (_SECRET, {"adversary": Adversary.MODEL}, "r_public"),
        (_SECRET, {"adversary": Adversary.EAVESDROPPER, "sampling": Poisson(0.1)}, "NoSampling"),
        (Gaussian(1.0), {"adversary": Adversary.EAVESDROPPER}, "server or the model"),
    ],
)
def test_what_no_theorem_covers_is_refused(
    make_release: MakeRelease, mechanism: object, terms: dict[str, object], says: str
) -> None:
    accountant = Accountant(DELTA)
    with pytest.raises(UnsupportedReleaseError, match=says):
        accountant.record(make_release(mechanism, **terms))
    assert accountant.releases == 0


def test_examples_may_be_passed_through_once_against_the_server(make_release: MakeRelease) -> None:
    """A device orders its own examples, so the server cannot break the pass."""
    release = make_release(
        Gaussian(1.0), FullPasses(9), unit=Unit.EXAMPLE, adversary=Adversary.SERVER
    )
    assert spent_by(release, 9) == spent_by(gaussian_release(1.0))


@pytest.mark.parametrize(
    "terms",
    [
        {"adversary": Adversary.SERVER},
        {"unit": Unit.EXAMPLE},
        {"adjacency": Adjacency.REPLACE_ONE},
    ],
)
def test_one_accountant_has_one_adversary_unit_and_adjacency(
    make_release: MakeRelease, terms: dict[str, object]
) -> None:
    accountant = Accountant(DELTA)
    accountant.record(make_release(Gaussian(1.0)))
    with pytest.raises(UnsupportedReleaseError, match="accountant of its own"):
        accountant.record(make_release(Gaussian(1.0), **terms))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_must_be_a_probability(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        Accountant(delta)


# State


def test_no_noise_is_an_infinite_epsilon(make_release: MakeRelease) -> None:
    for release in (
        gaussian_release(0.0),
        gaussian_release(0.0, Poisson(0.1)),
        gaussian_release(0.0, WithoutReplacement(1, 10)),
        make_release(Skellam(0.0, 1.0, 1.0)),
        make_release(CoordinateSampledGaussian(0.0, 0.5, 1.0, 0.1)),
    ):
        assert spent_by(release).epsilon == math.inf


def test_nothing_recorded_costs_nothing() -> None:
    accountant = Accountant(DELTA)
    accountant.record(gaussian_release(1.0), 0)
    assert accountant.epsilon().epsilon == 0.0
    assert accountant.releases == 0


def test_state_survives_json_within_a_pass(make_release: MakeRelease) -> None:
    accountant = Accountant(DELTA)
    accountant.record(gaussian_release(5.0, Poisson(0.1)), 7)
    accountant.record(make_release(Skellam(1e9, 1e3, 1e4), FullPasses(10)), 13)
    twin = Accountant.from_json(json.loads(json.dumps(accountant.to_json())))
    assert twin.epsilon() == accountant.epsilon()
    assert twin.releases == accountant.releases == 20
    for each in (accountant, twin):
        each.record(make_release(Skellam(1e9, 1e3, 1e4), FullPasses(10)), 8)
    assert twin.epsilon() == accountant.epsilon()


def test_would_exceed_looks_ahead_and_changes_nothing() -> None:
    accountant = Accountant(DELTA)
    release = gaussian_release(10.811618 + 1e-5)
    accountant.record(release, 99)
    before = accountant.epsilon()
    assert not accountant.would_exceed(release, 4.0)
    assert accountant.would_exceed(release, 4.0, count=2)
    assert accountant.epsilon() == before
    assert accountant.releases == 99


def test_would_exceed_uses_the_finer_method_where_renyi_is_too_coarse() -> None:
    release = gaussian_release(5.0, Poisson(0.1))
    budget = 0.5 * (spent_by(release, 100).epsilon + spent_by(release, 100, tight=False).epsilon)
    assert not Accountant(DELTA).would_exceed(release, budget, count=100)


def test_epsilon_is_the_same_however_the_rounds_are_recorded() -> None:
    whole, parts = Accountant(DELTA), Accountant(DELTA)
    whole.record(gaussian_release(4.0, WithoutReplacement(5, 50)), 30)
    for _ in range(30):
        parts.record(gaussian_release(4.0, WithoutReplacement(5, 50)))
    assert parts.epsilon().epsilon == pytest.approx(whole.epsilon().epsilon, rel=1e-12)
    assert len(parts.to_json()["releases"]) == 1


# Fellow clients


@pytest.mark.parametrize(
    "sampling", [NoSampling(), WithoutReplacement(3, 30), Poisson(0.1), FullPasses(9)]
)
def test_the_server_hides_the_draw_from_fellow_clients(
    make_release: MakeRelease, sampling: SecretDraw
) -> None:
    """What the draw hides from those who see the models it hides from clients to whom nobody told it."""
    clients = make_release(Gaussian(2.0), sampling, adversary=Adversary.client(colluders=3))
    assert spent_by(clients, 9) == spent_by(gaussian_release(2.0, sampling), 9)


# Monotonicity


def _at_most(smaller: float, larger: float) -> bool:
    """Up to the rounding of sums and quadratures."""
    return smaller <= larger * (1 + 1e-9) + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    z=st.floats(0.2, 50.0),
    rate=st.floats(1e-4, 0.99),
    rounds=st.integers(1, 2000),
    more=st.floats(1.0, 3.0),
)
def test_epsilon_grows_with_rounds_rate_and_less_noise(
    z: float, rate: float, rounds: int, more: float
) -> None:
    base = spent_by(gaussian_release(z, Poisson(rate)), rounds, tight=False).epsilon
    later = spent_by(
        gaussian_release(z, Poisson(rate)), math.ceil(rounds * more), tight=False
    ).epsilon
    denser = spent_by(
        gaussian_release(z, Poisson(min(1.0, rate * more))), rounds, tight=False
    ).epsilon
    quieter = spent_by(gaussian_release(z * more, Poisson(rate)), rounds, tight=False).epsilon
    assert _at_most(base, later)
    assert _at_most(base, denser)
    assert _at_most(quieter, base)
    unsampled = spent_by(gaussian_release(z), rounds, tight=False).epsilon
    assert spent_by(gaussian_release(z), rounds + 1).epsilon >= unsampled


@settings(max_examples=25, deadline=None)
@given(
    variance=st.floats(1e4, 1e10),
    l2=st.floats(1.0, 1e4),
    rate=st.floats(0.001, 0.99),
    rounds=st.integers(1, 500),
    more=st.floats(1.0, 4.0),
)
def test_skellam_epsilon_is_monotone(
    variance: float, l2: float, rate: float, rounds: int, more: float
) -> None:
    def spent(v: float, q: float, count: int) -> float:
        mechanism = Skellam(v, l2, l2 * min(l2, 10.0))
        release = Release(mechanism, Poisson(q), Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.MODEL)
        return spent_by(release, count, tight=False).epsilon

    base = spent(variance, rate, rounds)
    assert _at_most(base, spent(variance, rate, rounds + 7))
    assert _at_most(base, spent(variance, min(1.0, rate * more), rounds))
    assert _at_most(spent(variance * more, rate, rounds), base)


def test_tight_epsilon_is_monotone_in_rounds_rate_and_noise() -> None:
    def spent(z: float, rate: float, rounds: int) -> float:
        return spent_by(gaussian_release(z, Poisson(rate)), rounds).epsilon

    assert spent(4.0, 0.2, 50) < spent(4.0, 0.2, 60) < spent(4.0, 0.25, 60) < spent(3.5, 0.25, 60)
