"""Each step of the proof by numbers, then the claim itself by sums over integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from fedsketch.privacy.accounting import skellam_as_gaussian
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.costs import cost
from fedsketch.privacy.accounting.dominating_pairs import (
    Pair,
    PlainPair,
    PoissonPair,
    ReplaceOnePair,
    RevealedPair,
    ZeroOutPair,
)
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    NoSampling,
    Poisson,
    Release,
    SecretDraw,
    Skellam,
    Unit,
    WithoutReplacement,
)

Array = NDArray[np.float64]
MakeRelease = Callable[..., Release]
G = np.exp([0.0, 0.05, 0.3, 1.0, 2.5])
DELTA = 1e-5
LOSS = 0.75
BELOW_TWO = 1.99999999998  # multipliers are rounded down to 12 digits


def _pmf(variance: float, n: NDArray[np.int64]) -> Array:
    return np.asarray(special.ive(np.abs(n), variance))


def _most_curved(variance: float) -> float:
    """L of the proof."""
    return math.log((variance - 1 / 8) / (variance - 9 / 8))


# The steps of the proof


@pytest.mark.parametrize("variance", [4.0, 4.3, 7.0, 30.0, 1e3, 1e5])
def test_curvature_of_the_log_probabilities(variance: float) -> None:
    """At variance 4 the first four are those with which the proof starts."""
    j = np.arange(0, 60)
    middle, below, above = (_pmf(variance, j + shift) for shift in (0, -1, 1))
    usable = above > 1e-300
    turan = 1 - below[usable] * above[usable] / middle[usable] ** 2
    radius = np.sqrt(variance**2 + j[usable] ** 2.0)
    rounding = 1 + 1e-9 + 1e-14 * variance  # `turan` is a difference of numbers near 1
    assert np.all(turan <= rounding / (radius - 1 / 8))
    assert np.all(-np.log1p(-turan) <= rounding * _most_curved(variance))
    assert turan[0] > 1 / variance / rounding  # and not by much


@pytest.mark.parametrize("variance", [4.0, 9.0, 500.0])
@pytest.mark.parametrize("offset", [0.0, 0.37])
def test_curvature_of_cells_of_the_normal_law(variance: float, offset: float) -> None:
    length = (variance - LOSS) ** -0.5
    edges = np.arange(-8.0 + offset * length, 8.0, length)
    mass = np.abs(np.diff(np.where(edges > 0, -stats.norm.sf(edges), stats.norm.cdf(edges) - 1)))
    log_mass = np.log(mass)
    curvature = 2 * log_mass[1:-1] - log_mass[:-2] - log_mass[2:]
    inside = np.abs(edges[1:-2]) < 6
    assert np.all(curvature[inside] >= length**2 * (1 - length**2 / 12) - 1e-6)
    assert np.all(curvature[inside] >= _most_curved(variance) - 1e-6)


def test_inequalities_of_the_proof_hold_with_room() -> None:
    a, p, radius = 1 / 8, np.linspace(0, 1, 101)[:, None], np.geomspace(4, 1e4, 400)
    ahead = radius - a - 1 + p * radius / (2 * (radius - a))
    assert np.all(ahead <= radius * np.sqrt(1 - p / (radius - a)))
    u = np.linspace(0, 0.46, 1000)
    assert np.all(np.sqrt(1 - u) >= 1 - u / 2 - u**2 / 6)
    variance = np.geomspace(4, 1e4, 400)
    squared = 1 / (variance - LOSS)
    room = squared * (1 - squared / 12) - np.log((variance - 1 / 8) / (variance - 9 / 8))
    assert np.all(room > 0.01 * squared**2)


@pytest.mark.parametrize("length", [0.1, 0.55])
def test_a_cell_of_the_normal_law_varies_less_than_a_uniform_one(length: float) -> None:
    for start in np.linspace(-8, 8, 33):
        x = start + length * (np.arange(4000) + 0.5) / 4000
        weight = np.exp(-(x**2 - start**2) / 2)
        weight /= weight.sum()
        mean = weight @ x
        assert weight @ (x - mean) ** 2 <= length**2 / 12


@pytest.mark.parametrize("variance", [4.0, 5.5, 20.0, 400.0, 1e4])
def test_normal_quantiles_of_skellam_are_close_together(variance: float) -> None:
    deviation = math.sqrt(variance)
    n = np.arange(0, int(30 * deviation + 60))
    tail = np.cumsum(_pmf(variance, n)[::-1])[::-1]  # P(N >= n), exact in the tail too
    tail = tail[: int(9 * deviation)]
    gaps = np.diff(stats.norm.isf(tail[1:]))
    centre = 2 * stats.norm.isf(tail[1])
    widest = max(float(gaps.max()), float(centre))
    assert widest <= (variance - LOSS) ** -0.5
    assert widest >= variance**-0.5  # Gaussian noise of the same variance would not do


# The claim


def _profiles(p: Array, q: Array) -> tuple[Array, Array]:
    return (
        np.array([np.maximum(p - g * q, 0).sum() for g in G]),
        np.array([np.maximum(q - g * p, 0).sum() for g in G]),
    )


def _holds(pair: Pair, p: Array, q: Array) -> None:
    with_unit, without = _profiles(p, q)
    assert np.all(with_unit <= pair.with_unit(G) + 1e-14)
    assert np.all(without <= pair.without_unit(G) + 1e-14)


@pytest.mark.parametrize("variance", [4.0, 10.0, 300.0])
@pytest.mark.parametrize("shift", [1, 3, 10])
@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_one_number_shows_no_more_than_with_gaussian_noise(
    variance: float, shift: int, rate: float
) -> None:
    noise = math.sqrt(variance - LOSS) / shift
    n = np.arange(-300, 301)
    q, p = _pmf(variance, n), _pmf(variance, n - shift)
    _holds(PlainPair(noise), p, q)
    _holds(PoissonPair(noise, rate), (1 - rate) * q + rate * p, q)
    if variance == 300.0:
        np.testing.assert_allclose(_profiles(p, q)[0], PlainPair(noise).with_unit(G), atol=0.01)


@pytest.mark.parametrize("variance", [4.0, 12.0])
@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_vectors_in_the_plane_show_no_more_than_with_gaussian_noise(
    variance: float, rate: float
) -> None:
    """All integer vectors of norm at most 2 for the unit, for what stands in its place and for the other unit that is
    drawn."""
    n = np.arange(-45, 46)
    line = {shift: _pmf(variance, n - shift) for shift in range(-2, 3)}
    disc = [(a, b) for a, b in product(range(-2, 3), repeat=2) if a * a + b * b <= 4]
    laws = {(a, b): np.outer(line[a], line[b]) for a, b in disc}
    noise = math.sqrt(variance - LOSS) / 2
    zero_out, replaced = ZeroOutPair(noise, rate), ReplaceOnePair(noise / 2, rate)
    for unit in ((2, 0), (1, 1)):  # the others are mirror images, or inside
        for other in disc:
            rest = (1 - rate) * laws[other]
            p = rest + rate * laws[unit]
            for instead in disc:
                q = rest + rate * laws[instead]
                _holds(zero_out if instead == (0, 0) else replaced, p, q)


def test_too_little_noise_has_no_gaussian(make_release: MakeRelease) -> None:
    assert skellam_as_gaussian.noise_multiplier(Skellam(3.9, 1.0, 1.0)) is None
    assert skellam_as_gaussian.noise_multiplier(Skellam(100.0 + LOSS, 5.0, 9.0)) == BELOW_TWO
    assert cost(make_release(Skellam(3.9, 1.0, 1.0))).pair is None
    assert cost(make_release(Skellam(100.0 + LOSS, 5.0, 9.0))).pair == PlainPair(BELOW_TWO)


@pytest.mark.parametrize("sampling", [NoSampling(), Poisson(0.2), WithoutReplacement(2, 10)])
def test_more_noise_never_costs_more_where_the_theorem_begins(
    make_release: MakeRelease, sampling: SecretDraw
) -> None:
    def spent(variance: float) -> float:
        accountant = Accountant(DELTA)
        accountant.record(make_release(Skellam(variance, 1.0, 1.0), sampling), 3)
        return accountant.epsilon().epsilon

    epsilons = [spent(variance) for variance in (2.0, 3.5, 3.99, 4.0, 4.5, 6.0, 12.0, 100.0)]
    assert all(later <= earlier * (1 + 1e-4) for earlier, later in pairwise(epsilons))


# What the accountant makes of it


def _optimistic(p: Array, q: Array, rounds: int) -> float:
    """A lower bound on epsilon of so many releases: losses rounded down and composed by Fourier transform."""
    grid, size = 2e-4, 1 << 18
    index = np.floor(np.log(p / q) / grid).astype(int)
    mass = np.bincount(index % size, weights=p, minlength=size)
    losses = np.where(np.arange(size) < size // 2, np.arange(size), np.arange(size) - size) * grid
    composed = np.maximum(np.fft.irfft(np.fft.rfft(mass) ** rounds, size) - 1e-14, 0.0)
    low, high = 0.0, 20.0
    while high - low > 1e-4:
        epsilon = (low + high) / 2
        above = losses > epsilon
        left = np.sum(composed[above] * -np.expm1(epsilon - losses[above]))
        low, high = (epsilon, high) if left > DELTA else (low, epsilon)
    return low


@pytest.mark.parametrize(
    ("sampling", "rate"),
    [(NoSampling(), 1.0), (Poisson(0.2), 0.2), (WithoutReplacement(2, 10), 0.2)],
)
def test_stated_epsilon_is_just_above_what_fifty_releases_show(
    make_release: MakeRelease, sampling: SecretDraw, rate: float
) -> None:
    """One number of size 40, noise of deviation 200 (100 with sampling); others of a fixed-size draw at -40."""
    rounds, shift = 50, 40
    variance = 200.0**2 if rate == 1.0 else 100.0**2
    n = np.arange(-2500, 2501)
    zero, one, opposite = (_pmf(variance, n - at) for at in (0, shift, -shift))
    base = opposite if isinstance(sampling, WithoutReplacement) else zero
    p, q = (1 - rate) * base + rate * one, (1 - rate) * base + rate * zero
    kept = np.minimum(p, q) > 1e-250
    p, q = p[kept], q[kept]
    shown = max(_optimistic(p, q, rounds), _optimistic(q, p, rounds))
    accountant = Accountant(DELTA)
    accountant.record(make_release(Skellam(variance, shift, shift), sampling), rounds)
    stated = accountant.epsilon().epsilon
    slack = 1.06 if isinstance(sampling, WithoutReplacement) else 1.01
    assert shown <= stated <= slack * shown


def test_clients_drawn_whole_and_replaced_units_are_booked_alike(make_release: MakeRelease) -> None:
    law = Skellam(4.0e4 + LOSS, 100.0, 1e4)
    drawn = cost(make_release(law, Poisson(0.1), unit=Unit.EXAMPLE)).pair
    assert drawn == RevealedPair(BELOW_TWO, 0.1)
    replaced = cost(make_release(law, adjacency=Adjacency.REPLACE_ONE)).pair
    assert replaced == PlainPair(BELOW_TWO / 2)
