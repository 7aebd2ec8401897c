"""Against definitions: integrals of [P - g Q]_+ over grids, sums over all draws, and a composition of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsketch.errors import UnsupportedReleaseError
from fedsketch.privacy.accounting import pld, poisson
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
from fedsketch.privacy.accounting.release_json import release_from_json, release_to_json
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Gaussian,
    NoSampling,
    Poisson,
    Release,
    SecretDraw,
    Unit,
    WithoutReplacement,
)

Array = NDArray[np.float64]
G = np.exp([0.0, 0.05, 0.3, 1.0, 2.5])
DELTA = 1e-5


def _divergences(p: Array, q: Array, cell: float, g: Array = G) -> Array:
    return np.array([np.maximum(p - ratio * q, 0.0).sum() * cell for ratio in g])


def _line(noise: float, step: float) -> tuple[Array, Callable[[float], Array]]:
    x = np.arange(-10.0 * noise - 4.0, 10.0 * noise + 4.0, step)

    def density(mean: float) -> Array:
        return np.exp(-((x - mean) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))

    return x, density


# Profiles


@pytest.mark.parametrize("noise", [0.4, 1.0, 5.0])
@pytest.mark.parametrize("rate", [0.02, 0.5, 0.97])
def test_profiles_are_the_integrals_that_they_stand_for(noise: float, rate: float) -> None:
    step = noise / 2000
    _, at = _line(noise, step)
    sampled = (1 - rate) * at(0) + rate * at(1)
    opposite = (1 - rate) * at(-1)
    cases: list[tuple[Pair, Array, Array]] = [
        (PlainPair(noise), at(1), at(0)),
        (PoissonPair(noise, rate), sampled, at(0)),
        (ReplaceOnePair(noise, rate), sampled, at(0)),
        (ZeroOutPair(noise, rate), opposite + rate * at(1), opposite + rate * at(0)),
    ]
    for pair, p, q in cases:
        np.testing.assert_allclose(pair.with_unit(G), _divergences(p, q, step), atol=1e-6)
    plain = _divergences(at(1), at(0), step)
    revealed = RevealedPair(noise, rate)
    np.testing.assert_allclose(revealed.with_unit(G), rate * plain, atol=1e-6)
    back = PoissonPair(noise, rate).without_unit(G)
    np.testing.assert_allclose(back, _divergences(at(0), sampled, step), atol=1e-6)
    nearest = (1 - rate) * at(1)
    back = _divergences(nearest + rate * at(0), nearest + rate * at(1), step)
    np.testing.assert_allclose(ZeroOutPair(noise, rate).without_unit(G), back, atol=1e-6)


def _in_the_disc() -> Iterator[tuple[float, float]]:
    for radius in (0.4, 1.0):
        for angle in np.linspace(0, 2 * np.pi, 8, endpoint=False):
            yield radius * math.cos(angle), radius * math.sin(angle)


@pytest.mark.parametrize("noise", [0.6, 2.0])
@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_no_vectors_in_the_plane_are_worse_than_the_theorem_says(noise: float, rate: float) -> None:
    """The unit's vector along the first axis, what stands in its place and the other unit's all around: 2-d integrals
    both ways."""
    step = noise / 8
    grid = np.arange(-7 * noise - 1, 7 * noise + 1, step)
    x, y = np.meshgrid(grid, grid)

    def at(mean: tuple[float, float]) -> Array:
        squared = (x - mean[0]) ** 2 + (y - mean[1]) ** 2
        return np.exp(-squared / (2 * noise**2)) / (2 * math.pi * noise**2)

    zero_out, replaced = ZeroOutPair(noise, rate), ReplaceOnePair(noise / 2, rate)
    worst = {True: np.zeros(G.shape), False: np.zeros(G.shape)}
    places = {mean: at(mean) for mean in (*_in_the_disc(), (0.0, 0.0))}
    for unit in ((0.4, 0.0), (1.0, 0.0)):
        for other in _in_the_disc():
            r = (1 - rate) * places[other]
            p = r + rate * at(unit)
            for instead, density in places.items():
                q = r + rate * density
                with_unit = _divergences(p, q, step**2)
                without = _divergences(q, p, step**2)
                zeroed = instead == (0.0, 0.0)
                pair = zero_out if zeroed else replaced
                # The kink of [.]_+ costs the grid's sums about 1e-3 of their value.
                assert np.all(with_unit <= 1.003 * pair.with_unit(G) + 1e-6)
                assert np.all(without <= 1.003 * pair.without_unit(G) + 1e-6)
                worst[zeroed] = np.maximum(worst[zeroed], with_unit)
    # The worst ones are among them, so the profiles cannot be smaller.
    np.testing.assert_allclose(worst[True], zero_out.with_unit(G), rtol=5e-3, atol=1e-5)
    np.testing.assert_allclose(worst[False], replaced.with_unit(G), rtol=5e-3, atol=1e-5)


@pytest.mark.parametrize(
    "pair",
    [
        PoissonPair(0.8, 0.1),
        PoissonPair(0.8, 0.1, missed=0.01),
        ZeroOutPair(0.8, 0.1),
        ReplaceOnePair(0.8, 0.1),
        RevealedPair(0.8, 0.1),
    ],
)
def test_profiles_are_convex_and_grow_with_the_rate_and_less_noise(pair: Pair) -> None:
    g = np.linspace(1.0, 8.0, 400)
    rate = pair.rate  # type: ignore[attr-defined]
    worse = type(pair)(0.7, rate), type(pair)(0.8, 1.2 * rate)  # type: ignore[call-arg]
    for way in ("with_unit", "without_unit"):
        profile = getattr(pair, way)(g)
        assert np.all(np.diff(profile, 2) > -1e-14)
        assert np.all(profile <= PlainPair(0.8).with_unit(g) + 1e-15)
        if not getattr(pair, "missed", 0.0):
            for other in worse:
                assert np.all(profile <= getattr(other, way)(g) + 1e-15)
                assert other.covering([pair]) == type(pair)(other.noise, max(rate, other.rate))
    if isinstance(pair, PoissonPair):
        assert pair.covering([PoissonPair(0.9, 0.05, 0.02)]).missed == 0.02


# Whole mechanisms


def _subsets(values: list[float], size: int, at: Callable[[float], Array]) -> Array:
    draws = [sum(chosen) for chosen in combinations(values, size)]
    return sum((at(mean) for mean in draws), np.zeros(1)) / len(draws)


def _release(noise: float, sampling: SecretDraw, adjacency: Adjacency, unit: Unit) -> Release:
    return Release(Gaussian(noise), sampling, adjacency, unit, Adversary.MODEL)


def _epsilon(release: Release, count: int = 1, delta: float = DELTA) -> float:
    accountant = Accountant(delta)
    accountant.record(release, count)
    return accountant.epsilon().epsilon


@pytest.mark.parametrize("others", [[1.0] * 4, [-1.0] * 4, [1.0, -1.0, 0.3, -0.8]])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_stated_epsilon_of_a_fixed_size_draw_holds_for_all_subsets(
    others: list[float], adjacency: Adjacency
) -> None:
    """2 of 5 numbers in [-1, 1] plus noise: at the stated epsilon no more than delta is left, either way round."""
    noise, delta = 0.8, 1e-3
    draw = WithoutReplacement(2, 5)
    epsilon = _epsilon(_release(noise, draw, adjacency, Unit.CLIENT), delta=delta)
    _, at = _line(noise, noise / 500)
    neighbour = {
        Adjacency.ADD_OR_REMOVE: others,
        Adjacency.ZERO_OUT: [*others, 0.0],
        Adjacency.REPLACE_ONE: [*others, -1.0],
    }[adjacency]
    p, q = _subsets([*others, 1.0], 2, at), _subsets(neighbour, 2, at)
    for first, second in ((p, q), (q, p)):
        left = _divergences(first, second, noise / 500, np.array([math.exp(epsilon)]))
        assert left[0] <= delta * (1 + 1e-4)


@pytest.mark.parametrize("sampling", [Poisson(0.25), WithoutReplacement(2, 8)])
def test_stated_epsilon_of_a_client_drawn_whole_holds_and_is_nearly_reached(
    sampling: SecretDraw,
) -> None:
    """An example among neighbours that sum to 30: whether its client was drawn is plain to see."""
    noise, delta = 1.5, 1e-3
    epsilon = _epsilon(_release(noise, sampling, Adjacency.ZERO_OUT, Unit.EXAMPLE), delta=delta)
    x = np.arange(-20.0, 50.0, 0.002)

    def at(mean: float) -> Array:
        return np.exp(-((x - mean) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))

    p, q = 0.75 * at(0) + 0.25 * at(31), 0.75 * at(0) + 0.25 * at(30)
    for first, second in ((p, q), (q, p)):
        left = _divergences(first, second, 0.002, np.array([math.exp(epsilon)]))
        assert 0.999 * delta < left[0] <= delta * (1 + 1e-4)


@pytest.mark.parametrize(
    ("population", "rate", "smallest"), [(2, 0.3, 2), (5, 0.3, 2), (5, 0.4, 3), (4, 0.5, 1)]
)
def test_cohorts_too_small_to_be_asked_are_covered_by_what_is_missed(
    population: int, rate: float, smallest: int
) -> None:
    """All draws; a cohort of fewer than `smallest` passes as noise alone."""
    noise, step = 1.0, 0.002
    _, at = _line(noise, step)
    missed = poisson.missed(rate, population, smallest)
    pair, plain = PoissonPair(noise, rate, missed), PoissonPair(noise, rate)

    def law(values: list[float]) -> Array:
        total = np.zeros(1)
        for draw in product([0, 1], repeat=population):
            chance = math.prod(rate if drawn else 1 - rate for drawn in draw)
            asked = sum(draw) >= smallest
            mean = sum(value for value, drawn in zip(values, draw, strict=True) if drawn)
            total = total + chance * at(mean if asked else 0.0)
        return total

    broken = False
    for others in (-1.0, 0.5, 1.0):
        p, q = law([1.0, *[others] * (population - 1)]), law([0.0, *[others] * (population - 1)])
        with_unit, without = _divergences(p, q, step), _divergences(q, p, step)
        assert np.all(with_unit <= pair.with_unit(G) + 1e-6)
        assert np.all(without <= pair.without_unit(G) + 1e-6)
        broken |= bool(np.any(with_unit > 2 * plain.with_unit(G) + 1e-4))
    if population == 2:
        assert broken  # without what is missed the claim would be wrong
    if smallest == 1:
        assert missed == 0.0


def test_missed_draws_cost_epsilon_and_need_zero_out_adjacency() -> None:
    def spent(missed: float) -> float:
        draw = Poisson(0.1, missed=missed)
        return _epsilon(_release(4.0, draw, Adjacency.ZERO_OUT, Unit.CLIENT), 100)

    assert spent(0.0) < spent(1e-5) < spent(1e-3)
    draw = Poisson(0.1, missed=1e-3)
    with pytest.raises(ValueError, match="zero-out"):
        _epsilon(_release(4.0, draw, Adjacency.ADD_OR_REMOVE, Unit.CLIENT))


# Memory


def _two_rounds(
    noise: float, first: tuple[float, float], second: dict[str, tuple[float, float]], cell: float
) -> Array:
    """One of two units is drawn in each of two rounds. Joint law of both sums on a grid. `first` has the vectors of the
    unit and of the other one in round 1; `second` those of round 2, if the unit ("unit") or the other one ("other")
    was drawn in round 1."""
    _, at = _line(noise, cell)
    unit, other = (np.add(*map(at, second[drawn])) / 2 for drawn in ("unit", "other"))
    return (np.outer(at(first[0]), unit) + np.outer(at(first[1]), other)) / 2


def test_memory_breaks_the_profile_of_a_fixed_size_draw_in_the_second_round() -> None:
    """The other unit sends -1 where it remembers that it was drawn, else 1. Given a sum of round 1 that is likely with
    the unit, the sum of round 2 is easier to tell apart than any sum of a draw without memory."""
    noise, step = 0.5, 0.05
    x, _ = _line(noise, step)
    after = {"unit": (1.0, 1.0), "other": (1.0, -1.0)}
    without = {drawn: (0.0, vectors[1]) for drawn, vectors in after.items()}
    p = _two_rounds(noise, (1.0, 0.0), after, step)
    q = _two_rounds(noise, (0.0, 0.0), without, step)
    seen = int(np.searchsorted(x, 1.5))
    p_given, q_given = (joint[seen] / joint[seen].sum() / step for joint in (p, q))
    g = np.array([1.0, 1.2, 1.5])
    assert np.all(
        _divergences(p_given, q_given, step, g) > 1.1 * ZeroOutPair(noise, 0.5).with_unit(g)
    )
    first, before = p.sum(axis=1) * step, q.sum(axis=1) * step
    assert np.all(_divergences(first, before, step, g) <= ZeroOutPair(noise, 0.5).with_unit(g))


@pytest.mark.parametrize("noise", [0.6, 1.5])
def test_with_memory_two_rounds_cost_no_more_than_draws_that_are_seen(noise: float) -> None:
    """All vectors of -1, 0 and 1 of both units in both rounds, whatever they remember."""
    step, pair = noise / 5, RevealedPair(noise, 0.5)
    composed = pld.loss_distribution(pair, 1e-3).self_compose(2)
    stated = np.array([composed.get_delta_for_epsilon(math.log(g)) for g in G])
    largest = np.zeros(G.shape)
    values = (-1.0, 0.0, 1.0)
    for of_other, mine, other, own, others in product(values, values, values, values, values):
        after = {"unit": (mine, other), "other": (own, others)}
        without = {drawn: (0.0, vectors[1]) for drawn, vectors in after.items()}
        p = _two_rounds(noise, (1.0, of_other), after, step)
        q = _two_rounds(noise, (0.0, of_other), without, step)
        for first, second in ((p, q), (q, p)):
            largest = np.maximum(largest, _divergences(first, second, step**2))
    assert np.all(largest <= 1.003 * stated + 1e-5)


def test_memory_does_not_hurt_poisson_draws() -> None:
    """Two units, each drawn by a coin. What each remembers may decide about its vector of round 2."""
    noise, rate, step = 0.8, 0.4, 0.16
    _, at = _line(noise, step)
    composed = pld.loss_distribution(PoissonPair(noise, rate), 1e-3).self_compose(2)
    stated = np.array([composed.get_delta_for_epsilon(math.log(g)) for g in G])
    coins = [(drawn, rate if drawn else 1 - rate) for drawn in (0, 1)]

    def law(mine: tuple[float, float, float], other: tuple[float, float, float]) -> Array:
        """Vectors in round 1, and in round 2 without and with a part in round 1."""
        total = np.zeros(1)
        for (a, pa), (b, pb) in product(coins, coins):
            later = sum(
                (
                    pc * pd * at(c * mine[1 + a] + d * other[1 + b])
                    for (c, pc), (d, pd) in product(coins, coins)
                ),
                np.zeros(1),
            )
            total = total + pa * pb * np.outer(at(a * mine[0] + b * other[0]), later)
        return total

    values = (-1.0, 1.0)
    for others in product(values, values, values):
        q = law((0.0, 0.0, 0.0), others)
        for mine in product(values, values):
            p = law((1.0, *mine), others)
            for first, second in ((p, q), (q, p)):
                assert np.all(_divergences(first, second, step**2) <= 1.003 * stated + 1e-5)


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_a_draw_with_memory_is_booked_as_one_that_is_seen(adjacency: Adjacency) -> None:
    draw, hidden = WithoutReplacement(10, 100, with_memory=True), WithoutReplacement(10, 100)
    one = _release(4.0, draw, adjacency, Unit.CLIENT)
    noise = 4.0 if adjacency is Adjacency.ZERO_OUT else 2.0
    assert cost(one).pair == RevealedPair(noise, 0.1)
    plain = _epsilon(_release(4.0, hidden, adjacency, Unit.CLIENT), 50)
    everybody = _epsilon(_release(4.0, NoSampling(), adjacency, Unit.CLIENT), 50)
    assert 1.2 * plain < _epsilon(one, 50) < everybody
    with pytest.raises(UnsupportedReleaseError, match="zero-out"):
        cost(_release(4.0, draw, Adjacency.ADD_OR_REMOVE, Unit.CLIENT))
    assert release_from_json(release_to_json(one)) == one


# Composition


@pytest.mark.parametrize("pair", [PoissonPair(1.0, 0.2), ZeroOutPair(1.0, 0.2)])
def test_two_releases_cost_what_the_integral_over_both_says(pair: PoissonPair) -> None:
    """Over pairs of outputs. The worst neighbours of a Poisson draw are two laws, and the integral is met; those of a
    fixed-size draw are not the same two laws in both directions, and the integral stays below."""
    step = 0.04
    _, at = _line(1.0, step)
    far = 0.0 if isinstance(pair, PoissonPair) else -1.0
    p = (1 - pair.rate) * at(far) + pair.rate * at(1)
    q = (1 - pair.rate) * at(far) + pair.rate * at(0)
    both, neither = np.outer(p, p), np.outer(q, q)
    composed = pld.loss_distribution(pair, 1e-4).self_compose(2)
    for epsilon in (0.1, 0.5, 1.5, 3.0):
        g = np.array([math.exp(epsilon)])
        exact = max(
            _divergences(both, neither, step**2, g)[0], _divergences(neither, both, step**2, g)[0]
        )
        stated = composed.get_delta_for_epsilon(epsilon)
        assert exact * (1 - 1e-3) - 1e-8 <= stated
        if isinstance(pair, PoissonPair):
            assert stated <= exact * (1 + 1e-3) + 1e-8
        else:
            assert stated <= 1.05 * exact + 1e-8


def _optimistic(p: Array, q: Array, cell: float, rounds: int, delta: float) -> float:
    """A lower bound on epsilon: losses rounded down, composed by Fourier transform, what may be rounding left out."""
    grid, size = 2e-4, 1 << 18
    kept = (p > 0) & (q > 0)
    index = np.floor(np.log(p[kept] / q[kept]) / grid).astype(int)
    mass = np.bincount(index % size, weights=p[kept] * cell, minlength=size)
    losses = np.where(np.arange(size) < size // 2, np.arange(size), np.arange(size) - size) * grid
    composed = np.maximum(np.fft.irfft(np.fft.rfft(mass) ** rounds, size) - 1e-14, 0.0)
    low, high = 0.0, 20.0
    while high - low > 1e-4:
        epsilon = (low + high) / 2
        above = losses > epsilon
        left = np.sum(composed[above] * -np.expm1(epsilon - losses[above]))
        low, high = (epsilon, high) if left > delta else (low, epsilon)
    return low


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 2.0), (0.5, 8.0), (0.02, 1.0)])
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_hundred_rounds_cost_at_least_what_a_known_pair_shows(
    rate: float, noise: float, adjacency: Adjacency
) -> None:
    """The unit at 1 against its stand-in, all others at -1, in every round: stated epsilon is above this, and not by
    much."""
    rounds = 100
    draw = WithoutReplacement(int(1000 * rate), 1000)
    stated = _epsilon(_release(noise, draw, adjacency, Unit.CLIENT), rounds)
    step = noise / 1000
    _, at = _line(noise, step)
    instead = 0.0 if adjacency is Adjacency.ZERO_OUT else -1.0
    p = (1 - rate) * at(-1) + rate * at(1)
    q = (1 - rate) * at(-1) + rate * at(instead)
    shown = max(_optimistic(p, q, step, rounds, DELTA), _optimistic(q, p, step, rounds, DELTA))
    # No two laws are the worst in both directions, and replacing leaves more room between them.
    assert shown <= stated <= (1.06 if adjacency is Adjacency.ZERO_OUT else 1.12) * shown


def test_cohorts_of_many_sizes_are_composed_in_groups() -> None:
    def spent(sizes: list[int]) -> float:
        accountant = Accountant(DELTA)
        for size in sizes:
            draw = WithoutReplacement(size, 1000)
            accountant.record(_release(3.0, draw, Adjacency.ZERO_OUT, Unit.CLIENT))
        assert accountant.epsilon().method == "adaptive"
        return accountant.epsilon().epsilon

    sizes = list(range(80, 120))
    grouped = spent(sizes)
    # Draws of one size are composed more tightly than draws of many.
    assert spent([80] * 40) < spent([99] * 40) < grouped < 1.05 * spent([100] * 40)
