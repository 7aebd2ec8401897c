"""The profiles against integrals over a plane; the composition against all games of two rounds, and against attacks
over many rounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsketch.privacy.accounting import adaptive_draws, pld
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.dominating_pairs import (
    GaussianZeroOutPair,
    Pair,
    PlainPair,
    PoissonPair,
    ZeroOutPair,
)
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Gaussian,
    NoSampling,
    Release,
    Skellam,
    Unit,
    WithoutReplacement,
)

Array = NDArray[np.float64]
G = np.exp([0.0, 0.05, 0.3, 1.0, 2.5])
DELTA = 1e-5


def _plane(noise: float, step: float, mean: tuple[float, float]) -> Array:
    line = np.arange(-8 * noise - 1, 8 * noise + 1, step)
    x, y = (np.exp(-((line - m) ** 2) / (2 * noise**2)) for m in mean)
    return np.outer(x, y) / (2 * math.pi * noise**2)


def _divergences(p: Array, q: Array, cell: float, g: Array = G) -> Array:
    return np.array([np.maximum(p - ratio * q, 0.0).sum() * cell for ratio in g])


@pytest.mark.parametrize("noise", [0.3, 1.0, 6.0])
@pytest.mark.parametrize("rate", [0.05, 0.6])
def test_profiles_are_integrals_over_the_plane_and_hold_inside_the_disc(
    noise: float, rate: float
) -> None:
    step, pair = noise / 12, GaussianZeroOutPair(noise, rate)
    one, zero = _plane(noise, step, (1.0, 0.0)), _plane(noise, step, (0.0, 0.0))
    for t in (-0.95, -0.4, 0.0, 0.5, 0.95):
        for radius in (1.0, 0.98):
            if abs(t) > radius:
                continue
            r = (1 - rate) * _plane(noise, step, (t, math.sqrt(radius**2 - t**2)))
            p, q = r + rate * one, r + rate * zero
            for stated, found in (
                (adaptive_draws.ahead(G, pair, t), _divergences(p, q, step**2)),
                (adaptive_draws.back(G, pair, t), _divergences(q, p, step**2)),
            ):
                assert np.all(found <= stated * 1.003 + 1e-5)
                if radius == 1.0:
                    np.testing.assert_allclose(stated, found, rtol=5e-3, atol=1e-5)


def test_one_profile_falls_and_the_other_grows_up_to_those_of_the_pair() -> None:
    pair = GaussianZeroOutPair(1.2, 0.2)
    places = np.linspace(-1, 0.999, 30)
    falling = np.array([adaptive_draws.ahead(G, pair, t) for t in places])
    growing = np.array([adaptive_draws.back(G, pair, t) for t in np.linspace(-0.999, 1, 30)])
    assert np.all(np.diff(falling, axis=0) <= 1e-12)
    assert np.all(np.diff(growing, axis=0) >= -1e-12)
    np.testing.assert_allclose(falling[0], ZeroOutPair(1.2, 0.2).with_unit(G))
    np.testing.assert_allclose(growing[-1], PoissonPair(1.2, 0.2).with_unit(G))


@pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.3), (1.5, 0.5)])
def test_no_game_of_two_rounds_is_better_and_the_best_one_is_near(
    noise: float, rate: float
) -> None:
    """The other unit's vector of round 1 is any of seven on a line, and that of round 2 may depend on the sum of round
    1, chosen for each threshold by brute force."""
    step = noise / 60
    x = np.arange(-8 * noise - 2, 8 * noise + 2, step)

    def at(mean: float) -> Array:
        return np.exp(-((x - mean) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi)) * step

    choices = [
        ((1 - rate) * at(y) + rate * at(1), (1 - rate) * at(y) + rate * at(0))
        for y in np.linspace(-1, 1, 7)
    ]
    pair = GaussianZeroOutPair(noise, rate)
    grid, value = adaptive_draws._composition(pair, adaptive_draws._step(pair, 2)).after(2)
    for epsilon in (0.05, 0.4, 1.5):
        for sign in (1, -1):
            best = 0.0
            for p, q in choices:
                first, other = (p, q) if sign == 1 else (q, p)
                kept = first > 1e-12
                second = [
                    np.maximum(
                        a[None, :]
                        - math.exp(epsilon) * (other[kept] / first[kept])[:, None] * b[None, :],
                        0.0,
                    ).sum(axis=1)
                    for a, b in (c if sign == 1 else c[::-1] for c in choices)
                ]
                best = max(best, float(first[kept] @ np.max(second, axis=0)))
            stated = float(np.interp(sign * epsilon, grid, value))
            if sign == -1:
                stated = 1 - math.exp(epsilon) + math.exp(epsilon) * stated
            assert best <= stated * 1.001 + 1e-6
            assert stated <= 1.04 * best + 1e-5


def _epsilon(
    noise: float, rounds: int, law: str = "gaussian", more: int = 0, size: int = 100
) -> tuple[float, str]:
    one = Gaussian(noise) if law == "gaussian" else Skellam((noise * 4096) ** 2 + 0.75, 4096, 1e6)
    accountant = Accountant(DELTA)
    draw = WithoutReplacement(size, 1000)
    release = Release(one, draw, Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.MODEL)
    accountant.record(release, rounds)
    if more:
        plain = Release(
            Gaussian(20.0), NoSampling(), Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.MODEL
        )
        accountant.record(plain, more)
    spent = accountant.epsilon()
    return spent.epsilon, spent.method


def _adaptive(pair: Pair, rounds: int) -> float:
    """What an adversary reaches who chooses the better of the two worst cases in every round, by the loss so far: V on
    a fine grid of log g, interpolated."""
    rate, noise = pair.rate, pair.noise  # type: ignore[attr-defined]
    x = np.linspace(-7 * noise, 7 * noise, 401)

    def at(mean: float) -> Array:
        mass = np.exp(-((x - mean) ** 2) / (2 * noise**2))
        return mass / mass.sum()

    choices = [
        ((1 - rate) * at(y) + rate * at(1), (1 - rate) * at(y) + rate * at(0)) for y in (-1, 1)
    ]
    grid = np.linspace(-10, 10, 4001)
    value = np.maximum(-np.expm1(grid), 0.0)
    shifts = [np.log(q / p) for p, q in choices]
    for _ in range(rounds):
        value = np.max(
            [
                sum(
                    m * np.interp(grid + s, grid, value, left=1.0)
                    for m, s in zip(p, shift, strict=True)
                )
                for (p, _), shift in zip(choices, shifts, strict=True)
            ],
            axis=0,
        )
    return float(np.interp(-math.log(DELTA), -np.log(np.maximum(value, 1e-30)), grid))


@pytest.mark.parametrize("size", [100, 500])
def test_many_rounds_cost_about_what_the_best_adversary_reaches(size: int) -> None:
    """Epsilon is 2.2 for draws of 100 of 1000, and 7 for draws of 500."""
    stated, method = _epsilon(2.0, 20, size=size)
    assert method == "adaptive"
    pair = GaussianZeroOutPair(2.0, size / 1000)
    reached = _adaptive(pair, 20)
    assert 0.995 * reached <= stated <= 1.01 * reached
    assert stated < 0.985 * pld.epsilon({ZeroOutPair(2.0, size / 1000): 20}, DELTA)


def test_long_runs_are_composed_on_a_coarser_grid_and_cost_a_little_more() -> None:
    """2,000 rounds would take too long: they are composed by the pair."""
    pair = GaussianZeroOutPair(8.0, 0.1)
    one, other, fine = (adaptive_draws._step(pair, rounds) for rounds in (700, 699, 1))
    assert one == other > fine
    stated, method = _epsilon(8.0, 700)
    by_the_pair = pld.epsilon({ZeroOutPair(8.0, 0.1): 700}, DELTA)
    assert method == "adaptive"
    assert stated < 0.96 * by_the_pair
    exact = adaptive_draws._composition(pair, fine * 2).after(100)[1]
    coarse = adaptive_draws._composition(pair, one).after(100)[1]
    every = round(one / fine / 2)
    assert np.all(exact[::every][: len(coarse)] <= coarse[: len(exact[::every])] + 1e-9)
    assert not adaptive_draws.is_quick(pair, 2000)


def test_skellam_noise_is_composed_by_the_pair() -> None:
    assert _epsilon(2.0, 20, "skellam")[1] == "pld"


def test_other_releases_are_taken_as_the_first() -> None:
    """More than without them; no more than by the pair; and two kinds of draws are covered too."""
    alone, _ = _epsilon(2.0, 20)
    both, method = _epsilon(2.0, 20, more=3)
    by_the_pair = pld.epsilon({ZeroOutPair(2.0, 0.1): 20, PlainPair(20.0 / 3**0.5): 1}, DELTA)
    assert method == "adaptive"
    assert alone < both < by_the_pair
    mixed = Accountant(DELTA)
    for size, rounds in ((100, 20), (50, 5)):
        draw = WithoutReplacement(size, 1000)
        mixed.record(
            Release(Gaussian(2.0), draw, Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.MODEL), rounds
        )
    assert alone < mixed.epsilon().epsilon < _epsilon(2.0, 25)[0]


def test_epsilon_grows_with_the_rounds() -> None:
    spent = [_epsilon(2.0, rounds)[0] for rounds in (2, 3, 10, 17, 40, 80, 81)]
    assert spent == sorted(spent)
