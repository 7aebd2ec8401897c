from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsketch.errors import UnsafeUpdateError
from fedsketch.privacy.mechanisms.encoding import (
    clip_rows,
    exceeds,
    round_conditionally,
    squared_norms,
)
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.privacy.mechanisms.ring_integers import ring_sum
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing


def _plan(
    dim: int, *, bits: int = 32, clip: float = 1.0, clients: int = 10, z: float = 3.0
) -> SkellamRing:
    return choose_ring(
        dim=dim, clients=clients, clip=clip, bits=bits, noise=lambda l2, l1: (z * l2) ** 2
    )


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=60),
    clip=st.floats(1e-3, 1e3),
    bits=st.sampled_from([20, 32]),
)
@example(values=[1e30] * 50, clip=1.0, bits=32)
@example(values=[1e300, -1e300], clip=1.0, bits=20)
@example(values=[0.0], clip=1.0, bits=32)
def test_integer_norm_never_exceeds_the_bound(values: list[float], clip: float, bits: int) -> None:
    """Without noise what leaves is q itself: whatever the vector, |q|^2 <= D2^2 in exact integers."""
    plan = _plan(len(values), clip=clip, bits=bits, z=0.0)
    ring = plan.encode(np.array(values), Stream(derived_key(1)), 5)
    signed = (ring.astype(np.int64) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    assert squared_norms(signed[None])[0] <= plan.l2_bound_squared <= plan.l2_sensitivity**2
    assert np.sum(np.abs(signed)) <= plan.l1_sensitivity * (1 + 1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_are_refused_with_a_sentence(bad: float) -> None:
    with pytest.raises(UnsafeUpdateError, match="nothing was released"):
        _plan(3).encode(np.array([1.0, bad, 0.0]), Stream(), 1)


def test_wrong_length_is_refused() -> None:
    with pytest.raises(UnsafeUpdateError, match="rows of 4 numbers"):
        _plan(4).encode(np.ones(5), Stream(), 1)


def test_more_rows_than_planned_are_refused() -> None:
    with pytest.raises(UnsafeUpdateError, match="at most 1 rows"):
        _plan(4).encode(np.ones((2, 4)), Stream(), 1)


def test_every_unit_of_a_client_is_bounded_by_itself() -> None:
    """Three examples, one of them 1e30: without noise the sum is that of the three clipped rows, to rounding."""
    plan = choose_ring(dim=50, clients=4, clip=0.5, rows=3, noise=lambda l2, l1: 0.0)
    rows = np.random.default_rng(2).normal(size=(3, 50)) * np.array([[0.01], [1.0], [1e30]])
    expected = clip_rows(rows, 0.5).sum(axis=0)
    sent = plan.total([plan.encode(rows, Stream(derived_key(9)), 1)], 1)
    assert np.abs(sent - expected).max() <= 3 / plan.scale
    one = choose_ring(dim=50, clients=4, clip=0.5, rows=1, noise=lambda l2, l1: 0.0)
    assert plan.l2_sensitivity == one.l2_sensitivity


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=30), clip=st.floats(1e-6, 1e6)
)
@example(values=[1e308] * 30, clip=6.1e-5)
@example(values=[5e-324], clip=1.0)
def test_numpy_clip_bounds_the_norm(values: list[float], clip: float) -> None:
    clipped = clip_rows(np.array([values, values[::-1]]), clip)
    assert np.all(np.linalg.norm(clipped, axis=1) <= clip * (1 + 1e-12))


def test_a_vector_within_the_clip_is_kept() -> None:
    rows = np.array([[0.3, -0.4], [0.0, 0.0]])
    assert np.array_equal(clip_rows(rows, 0.6), rows)
    np.testing.assert_allclose(clip_rows(rows, 0.05), rows / 10)


@pytest.mark.parametrize("bits", [16, 20, 24, 32, 48, 64])
@pytest.mark.parametrize("dim", [1, 100, 1001])
def test_sum_in_the_ring_decodes_to_the_sum(bits: int, dim: int) -> None:
    """Without noise the error is rounding alone: at most n units of 1/s before the inverse rotation."""
    clients = 5
    plan = _plan(dim, bits=bits, clients=clients, z=0.0)
    assert plan.rotate == (bits <= 20)
    rng = np.random.default_rng(dim)
    vectors = clip_rows(rng.normal(size=(clients, dim)), 0.9)
    total = np.zeros(dim, dtype=np.uint64)
    for client, vector in enumerate(vectors):
        part = plan.encode(vector, Stream(derived_key(2, client)), 9)
        assert int(part.max()) < 2**bits
        total = (total + part) & np.uint64(2**bits - 1)
    error = plan.total([total], 9) - np.sum(vectors, axis=0)
    assert np.linalg.norm(error) <= clients * math.sqrt(dim) / plan.scale


@pytest.mark.parametrize("bits", [20, 32])
def test_decoded_sum_has_the_booked_noise(bits: int) -> None:
    """Through clip, rotation, rounding, noise, ring and back: the variance of 40,000 coordinates of the sum against the
    plan's, plus at most n/4 units of rounding. 4.9 sigma on either side, false alarm 1e-6."""
    dim, clients = 40_000, 6
    plan = _plan(dim, bits=bits, clients=clients)
    vector = np.random.default_rng(0).normal(size=dim)
    total = np.zeros(dim, dtype=np.uint64)
    for client in range(clients):
        total += plan.encode(vector, Stream(derived_key(3, client)), 4)
    noise = plan.total([total], 4) - clients * clip_rows(vector[None], 1.0)[0]
    measured = np.mean(noise**2) * plan.scale**2
    booked = clients * plan.local_variance
    margin = 4.9 * math.sqrt(2.0 / dim)
    assert booked * (1 - margin) < measured < (booked + clients / 4) * (1 + margin)
    assert plan.noise_std(clients * plan.variance_per_device) == pytest.approx(
        math.sqrt(booked) / plan.scale
    )


def test_chunks_of_rows_change_nothing_but_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = choose_ring(dim=50, clients=4, clip=0.5, rows=7, noise=lambda l2, l1: 0.0)
    rows = np.random.default_rng(3).normal(size=(7, 50))
    expected = clip_rows(rows, 0.5).sum(axis=0)
    # Two rows at a time.
    monkeypatch.setattr("fedsketch.privacy.mechanisms.skellam_ring._NUMBERS_AT_ONCE", 100)
    sent = plan.total([plan.encode(rows, Stream(derived_key(9)), 1)], 1)
    assert np.abs(sent - expected).max() <= 7 / plan.scale


def test_rounding_is_unbiased() -> None:
    """The mean over 200,000 roundings of 0.3 (bound never binding) is 0.3: 4.9 sigma, false alarm 1e-6."""
    n = 200_000
    rounded = round_conditionally(np.full((1, n), 0.3), 10**9, Stream(derived_key(6)))
    assert set(np.unique(rounded)) == {0, 1}
    assert abs(rounded.mean() - 0.3) < 4.9 * math.sqrt(0.21 / n)


def test_rounding_is_redrawn_until_it_fits() -> None:
    """Four halves, bound 1: only draws with at most one rounded up leave, the five equally likely (false alarm
    1e-6)."""
    rounded = round_conditionally(np.full((4000, 4), 0.5), 1, Stream(derived_key(7)))
    draws = [tuple(row) for row in rounded.tolist()]
    assert all(sum(draw) <= 1 for draw in draws)
    counts = [sum(draw == one for draw in draws) for one in set(draws)]
    assert len(counts) == 5
    assert stats.chisquare(counts).pvalue > 1e-6


def test_rounding_that_can_never_fit_is_refused() -> None:
    with pytest.raises(UnsafeUpdateError, match="norm bound"):
        round_conditionally(np.full((1, 4), 5.0), 10, Stream())


_WORD = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), 2**63 - 1, 2**44, -(2**44), 2**22, 2**32, 2**31 + 1, -1, 0]),
)


@settings(max_examples=300, deadline=None)
@given(row=st.lists(_WORD, min_size=1, max_size=20))
@example(row=[-(2**63)] * 4)
@example(row=[2**32] * 2)
def test_norms_are_exact_for_all_64_bit_integers(row: list[int]) -> None:
    matrix, exact = np.array([row], dtype=np.int64), sum(x * x for x in row)
    assert squared_norms(matrix).tolist() == [exact]
    for bound in {
        max(exact - 1, 0),
        exact,
        exact + 1,
        0,
        1,
        2**62,
        2**63 // len(row),
        2**64,
        2**128,
    }:
        assert exceeds(matrix, bound).tolist() == [exact > bound]


@pytest.mark.parametrize("size", [3 * 2**18 + 5, 1])
def test_norms_of_long_rows_are_exact(size: int) -> None:
    """Of rows that are longer than one block, with the numbers whose parts have the largest products."""
    matrix = np.full((2, size), 2**44 - 1, dtype=np.int64)
    matrix[1] = -(2**63)
    assert squared_norms(matrix).tolist() == [size * (2**44 - 1) ** 2, size * 2**126]
    assert exceeds(matrix, size * (2**44 - 1) ** 2).tolist() == [False, True]
    assert exceeds(matrix, 2**61).tolist() == [True, True]


@pytest.mark.parametrize("bound", [2**61, 2**80])
def test_time_of_rounding_does_not_depend_on_one_large_number(bound: int) -> None:
    """One large number among many used to select Python's integers for all of them: 3.5 or 12.4 ms of processor time,
    depending on a pixel. The smallest of several times is compared, so that a busy machine does not matter."""
    flat = np.full((1, 100_000), 1000.5)
    peak = flat.copy()
    peak[0, 0] = 2.0**27

    def seconds(row: np.ndarray) -> float:
        times = []
        with Stream() as stream:
            for _ in range(15):
                begun = time.process_time()
                round_conditionally(row, bound, stream)
                times.append(time.process_time() - begun)
        return min(times)

    assert seconds(peak) < 1.5 * seconds(flat)


def test_devices_without_a_key_never_repeat() -> None:
    plan = _plan(50)
    assert not np.array_equal(
        plan.encode(np.ones(50), Stream(), 1), plan.encode(np.ones(50), Stream(), 1)
    )


def test_wraparound_is_as_rare_as_planned() -> None:
    """A 20-bit ring filled to its limit by identical clients: no coordinate of 100 sums of 200 wraps (planned: 1e-9 per
    sum)."""
    plan = _plan(200, bits=20, clients=10)
    vector = np.zeros(200)
    vector[0] = 1.0
    for trial in range(100):
        total = np.zeros(200, dtype=np.uint64)
        for client in range(10):
            total += plan.encode(vector, Stream(derived_key(8, trial, client)), trial)
        error = plan.total([total], trial) - 10 * vector
        assert np.abs(error).max() < 8 * plan.noise_std(10 * plan.variance_per_device)


@pytest.mark.parametrize("at_once", [True, False])
def test_noise_drawn_at_once_for_many_has_the_law_of_their_sum(at_once: bool) -> None:
    """Five devices of variance 3: Skellam's law of variance 15, which the test would tell from one of variance 20.
    Fails by chance once in a million times."""
    plan = replace(_plan(20_000, clients=5, z=0.0), local_variance=3)
    nothing = torch.zeros(5, plan.dim)
    with Stream() as stream:
        if at_once:
            sums = [plan.protect_sum(nothing, [1] * 5, stream, 1).vector]
        else:
            sums = [plan.protect(nothing[i : i + 1], stream, 1).vector for i in range(5)]
    drawn = ring_sum(sums, plan.ring.modulus)
    counts = np.histogram(drawn, np.arange(-12.5, 13))[0]
    for variance, likely in ((15, True), (20, False)):
        law = stats.skellam(variance / 2, variance / 2)
        within = law.pmf(np.arange(-12, 13))
        expected = plan.dim * np.append(within, 1 - within.sum())
        observed = np.append(counts, plan.dim - counts.sum())
        assert bool(stats.chisquare(observed, expected).pvalue > 5e-7) is likely


def test_rows_of_many_are_rounded_each_by_itself() -> None:
    """Without noise the sum at once is the sum of what each device sends, with the same randomness bit by bit."""
    plan = _plan(30, clients=4, z=0.0)
    rows = torch.randn(4, 30, generator=torch.Generator().manual_seed(1)) / 100
    together = plan.protect_sum(rows, [1] * 4, Stream(derived_key(3)), 1).vector
    stream = Stream(derived_key(3))
    each = [plan.protect(row[None], stream, 1).vector for row in rows]
    np.testing.assert_array_equal(
        ring_sum([together], plan.ring.modulus), ring_sum(each, plan.ring.modulus)
    )
    with pytest.raises(UnsafeUpdateError, match="at most 1 rows"):
        plan.protect_sum(rows, [1] * 3, stream, 1)


def test_noise_of_many_may_be_more_than_one_draw_gives() -> None:
    plan = replace(_plan(2_000, clients=5, z=0.0), local_variance=2**61, bits=64)
    with Stream() as stream:
        sent = plan.protect_sum(torch.zeros(5, plan.dim), [1] * 5, stream, 1).vector
    ratio = np.sum((sent.view(np.int64) / 2.0**31) ** 2) / 2.5  # 5 * 2^61 over 2^62
    assert stats.chi2.isf(1 - 5e-7, plan.dim) < ratio < stats.chi2.isf(5e-7, plan.dim)
