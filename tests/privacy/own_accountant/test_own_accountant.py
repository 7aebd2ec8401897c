"""The tests' own accountant against closed forms and brute force."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from tests.privacy.own_accountant.losses import composed
from tests.privacy.own_accountant.noise import gaussian_loss, skellam_loss, skellam_masses
from tests.privacy.own_accountant.sums import (
    GaussianSum,
    Pair,
    SkellamSum,
    either,
    epsilon,
    revealed,
)

DELTA = 1e-5


def _gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang 2018, Theorem 8."""
    other = math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    return float(stats.norm.cdf(mu / 2 - epsilon / mu) - other)


def _gaussian_epsilon(mu: float, delta: float) -> float:
    return float(optimize.brentq(lambda e: _gaussian_delta(mu, e) - delta, 0.0, 50.0, xtol=1e-12))


def test_it_imports_neither_the_project_nor_its_composer() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        if path.name != Path(__file__).name:
            text = path.read_text()
            assert "fedsketch" not in text
            assert "dp_accounting" not in text


@pytest.mark.parametrize(("multiplier", "rounds"), [(1.0, 1), (0.7, 1), (5.0, 30), (12.0, 100)])
def test_gaussians_compose_to_the_exact_curve(multiplier: float, rounds: int) -> None:
    pair = GaussianSum(multiplier).always(4e-4 / rounds)
    low, high = epsilon([(pair, rounds)], DELTA)
    exact = _gaussian_epsilon(math.sqrt(rounds) / multiplier, DELTA)
    assert low <= exact <= high
    assert high - low < 1e-3


def test_gaussians_of_different_noise_compose() -> None:
    parts = [(GaussianSum(z).always(1e-5), count) for z, count in ((3.0, 2), (5.0, 7))]
    low, high = epsilon(parts, DELTA)
    assert low <= _gaussian_epsilon(math.sqrt(2 / 9 + 7 / 25), DELTA) <= high


@pytest.mark.parametrize("variance", [1.1e6, 1e8])
def test_masses_of_large_skellam_noise_are_those_of_the_bessel_function(variance: float) -> None:
    """Scipy's own error is some 1e-11 there."""
    last = int(9 * math.sqrt(variance))
    exact = special.ive(np.arange(last + 1), variance)
    np.testing.assert_allclose(skellam_masses(last, variance), exact, rtol=1e-10)


def test_masses_of_very_large_skellam_noise_are_a_law_of_its_variance() -> None:
    variance = 2e9  # where scipy has nan
    masses = skellam_masses(int(9 * math.sqrt(variance)), variance)
    x = np.arange(len(masses))
    assert 2 * masses.sum() - masses[0] == pytest.approx(1.0, abs=1e-10)
    assert 2 * (masses * x**2).sum() == pytest.approx(variance, rel=1e-9)


def _hockey_stick(p: list[float], q: list[float], epsilon: float) -> float:
    return sum(max(a - math.exp(epsilon) * b, 0.0) for a, b in zip(p, q, strict=True))


def _skellam(x: int, variance: float) -> float:
    """From the definition: the difference of two Poissons."""
    return sum(
        stats.poisson.pmf(k, variance / 2) * stats.poisson.pmf(k + abs(x), variance / 2)
        for k in range(80)
    )


@pytest.mark.parametrize("kind", ["always", "poisson", "fixed_size"])
def test_skellam_rounds_agree_with_brute_force(kind: str) -> None:
    """Two rounds, every pair of integers that occurs: the interval meets the definition at both ends."""
    variance, size, rate, delta = 3.0, 2, 0.3, 1e-2
    at = range(-32, 33)
    law = {x: _skellam(x, variance) for x in range(-40, 41)}
    r = [law[x + size] for x in at]
    there, gone = [law[x - size] for x in at], [law[x] for x in at]
    if kind == "poisson":
        there = [(1 - rate) * b + rate * a for a, b in zip(there, gone, strict=True)]
    if kind == "fixed_size":
        there = [(1 - rate) * o + rate * a for o, a in zip(r, there, strict=True)]
        gone = [(1 - rate) * o + rate * a for o, a in zip(r, gone, strict=True)]
    noisy = SkellamSum(variance, (size,))
    step = 1e-5
    pair: Pair = getattr(noisy, kind)(*(() if kind == "always" else (rate,)), step)
    low, high = epsilon([(pair, 2)], delta)

    def delta_of(e: float) -> float:
        p2, q2 = ([a * b for a, b in itertools.product(one, one)] for one in (there, gone))
        return max(_hockey_stick(p2, q2, e), _hockey_stick(q2, p2, e))

    assert high - low < 1e-3
    assert delta_of(low) >= delta >= delta_of(high)


def test_coordinates_of_a_contribution_are_independent_noise() -> None:
    variance, delta = 4.0, 1e-2
    low, high = epsilon([(SkellamSum(variance, (2, -1, 0, 1)).always(1e-5), 1)], delta)
    law = {x: _skellam(x, variance) for x in range(-30, 31)}
    p, q = [], []
    for x in itertools.product(range(-16, 17), repeat=3):
        p.append(law[x[0] - 2] * law[x[1] + 1] * law[x[2] - 1])
        q.append(law[x[0]] * law[x[1]] * law[x[2]])
    assert _hockey_stick(p, q, low) >= delta >= _hockey_stick(p, q, high)


def test_a_fine_skellam_is_nearly_a_gaussian() -> None:
    skellam = epsilon([(SkellamSum(4000.0**2, (4000,)).poisson(0.1, 1e-4), 10)], DELTA)
    gaussian = epsilon([(GaussianSum(1.0).poisson(0.1, 1e-4), 10)], DELTA)
    assert skellam.low == pytest.approx(gaussian.low, rel=1e-3)


@pytest.mark.parametrize("kind", ["poisson", "fixed_size"])
def test_one_sampled_gaussian_round_agrees_with_an_integral(kind: str) -> None:
    rate, z, delta = 0.2, 0.8, 1e-4
    low, high = epsilon([(getattr(GaussianSum(z), kind)(rate, 4e-5), 1)], delta)

    def integral(e: float, swap: bool) -> float:
        def excess(x: float) -> float:
            others = (1 - rate) * stats.norm.pdf(x, -1.0 if kind == "fixed_size" else 0.0, z)
            there = others + rate * stats.norm.pdf(x, 1.0, z)
            gone = others + rate * stats.norm.pdf(x, 0.0, z)
            p, q = (gone, there) if swap else (there, gone)
            return max(p - math.exp(e) * q, 0.0)

        return float(integrate.quad(excess, -12.0, 12.0, points=[0.0, 1.0, 2.0], limit=500)[0])

    assert high - low < 2e-4
    assert max(integral(low, False), integral(low, True)) >= delta * (1 - 1e-6)
    assert max(integral(high, False), integral(high, True)) <= delta * (1 + 1e-6)


def test_a_revealed_draw_dilutes_delta_alone() -> None:
    """One round: delta(epsilon) is the rate times the plain one."""
    pair = GaussianSum(1.0).always(1e-4)
    low, high = epsilon([(revealed(pair, 0.1), 1)], DELTA)
    exact = _gaussian_epsilon(1.0, DELTA / 0.1)
    assert low <= exact <= high


def test_of_two_cases_the_adversary_sees_which_one_it_is() -> None:
    """One round: delta(epsilon) is the mean of both."""
    noises, weight = (0.8, 1.5), 0.3
    cases = [GaussianSum(z).always(1e-4) for z in noises]
    low, high = epsilon([(either([(weight, cases[0]), (1 - weight, cases[1])]), 1)], DELTA)

    def delta_of(e: float) -> float:
        one, other = (_gaussian_delta(1 / z, e) for z in noises)
        return weight * one + (1 - weight) * other

    assert high - low < 1e-3
    assert delta_of(low) >= DELTA >= delta_of(high)


def test_sampling_at_rate_one_is_none() -> None:
    plain = epsilon([(GaussianSum(1.0).always(1e-4), 5)], DELTA)
    sampled = epsilon([(GaussianSum(1.0).fixed_size(1.0 - 1e-12, 1e-4), 5)], DELTA)
    assert sampled.low == pytest.approx(plain.low, abs=2e-3)


def test_masses_are_kept_by_composition() -> None:
    for loss in (
        gaussian_loss([(1.0, 1.0)], [(1.0, 0.0)], 1e-3),
        skellam_loss([(1.0, 3.0)], [(1.0, 0.0)], 20.0, 1e-3),
    ):
        total = composed([(loss, 50)])
        assert total.masses.sum() == pytest.approx(1.0, abs=1e-12)
        mean, one = total.values @ total.masses, loss.values @ loss.masses
        assert mean == pytest.approx(50 * one, abs=1e-6)
        assert np.all(total.masses > -1e-14)
