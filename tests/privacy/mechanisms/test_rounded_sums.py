"""Sums that are rounded once: the bound on what one row changes, by brute force and by attack; the law of the integers;
wire and price."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from fedsketch.errors import UnsafeUpdateError, UnsoundMechanismError
from fedsketch.privacy.accounting.releases import Adversary, NoSampling, Skellam, Unit
from fedsketch.privacy.mechanisms.encoding import squared_norms
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.privacy.mechanisms.ring_integers import ring_sum
from fedsketch.privacy.mechanisms.rows import Factors, Rows, allowance, threshold_rounded
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing

Matrix = NDArray[np.float64]


def _plan(
    dim: int, rows: int, *, bits: int = 32, scale: float | None = None, z: float = 0.0
) -> SkellamRing:
    return choose_ring(
        dim=dim,
        clients=10,
        clip=1.0,
        unit=Unit.EXAMPLE,
        rows=rows,
        bits=bits,
        scale=scale,
        noise=lambda l2, l1: (z * l2) ** 2,
    )


def _integers(plan: SkellamRing, rows: Matrix, key: int) -> NDArray[np.int64]:
    """Without noise, with the thresholds of this key."""
    sent = plan.encode(rows, Stream(derived_key(key)), 3)
    return ring_sum([sent], plan.ring.modulus).astype(np.int64)


# ---------------------------------------------------------------------- what one row changes
@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(1, 12),
    dim=st.integers(1, 9),
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1e-3, 0.3, 1.0, 30.0, 1e30]),
    rotate=st.booleans(),
    changed=st.integers(1, 3),
)
def test_rows_replaced_by_zeros_change_the_integers_by_no_more_than_the_bound(
    rows: int, dim: int, seed: int, size: float, rotate: bool, changed: int
) -> None:
    plan = replace(_plan(dim, 12, scale=7.3), rotate=rotate, rounds_once=True, bits=48)
    rng = np.random.default_rng(seed)
    given = size * rng.normal(size=(rows, dim))
    other = given.copy()
    other[:changed] = 0.0
    apart = _integers(plan, given, seed) - _integers(plan, other, seed)
    law = replace(plan, rows=changed).release_to(1.0, Unit.CLIENT, NoSampling(), Adversary.SERVER)
    assert isinstance(law.law, Skellam)
    assert squared_norms(apart[None])[0] <= law.law.l2_sensitivity**2
    assert np.abs(apart).sum() <= law.law.l1_sensitivity * (1 + 1e-12)


@pytest.mark.parametrize("dim", [4, 16, 64])
def test_rows_at_the_thresholds_exceed_any_bound_without_the_root_of_k(dim: int) -> None:
    """The attack: who knows the thresholds puts the sum of the others just below them, so that one row lifts every
    coordinate over one more threshold than its length is worth. What is booked for rounded rows is exceeded; what is
    booked for sums is not, and is nearly reached."""
    step = 4.0 + 2.0**-18  # of the row, in integer units, in every coordinate
    plan = replace(_plan(dim, 2, scale=step * math.sqrt(dim)), rounds_once=True)
    others = (1.0 - Stream(derived_key(5)).uniform(dim) - 2.0**-20) / plan.scale
    row = np.full(dim, 1.0 / math.sqrt(dim))
    without = _integers(plan, np.stack([others, np.zeros(dim)]), 5)
    apart = _integers(plan, np.stack([others, row]), 5) - without
    assert (apart == 5).all()
    attack = float(np.linalg.norm(apart))
    assert attack > replace(plan, rounds_once=False).l2_sensitivity
    assert attack > 1.2 * plan.scale * plan.clip
    assert 0.999 * plan.l2_sensitivity < attack <= plan.l2_sensitivity


def test_every_pair_of_numbers_is_rounded_no_further_apart_than_the_proof_says() -> None:
    """|floor(x + t) - floor(y + t)| <= ceil(|x - y|), on a grid that hits all thresholds."""
    grid = np.arange(-24, 25) / 8.0
    for threshold in np.arange(8) / 8.0:
        rounded = threshold_rounded(grid, np.full(len(grid), threshold))
        apart = np.abs(rounded[:, None] - rounded[None, :])
        assert (apart <= np.ceil(np.abs(grid[:, None] - grid[None, :]))).all()
        assert (apart > np.abs(grid[:, None] - grid[None, :])).any()


@pytest.mark.parametrize(("rows", "dim"), [(3, 5), (400, 7), (30, 300)])
def test_floating_point_stays_within_its_allowance(rows: int, dim: int) -> None:
    """Norms, weights and sums against exact fractions, for float32 factors of very different sizes."""
    rng = np.random.default_rng(rows)
    sizes = 10.0 ** rng.uniform(-6, 6, (rows, 1))
    given = (sizes * rng.normal(size=(rows, dim))).astype(np.float32)
    made = Rows((Factors(given),)).clipped_sum(1.0)
    weights = np.minimum(1.0, 1.0 / np.maximum(Rows((Factors(given),)).norms(), 1.0))
    error, longest = Fraction(0), Fraction(0)
    for j in range(dim):
        exact = sum(
            (
                Fraction(float(w)) * Fraction(float(x))
                for w, x in zip(weights, given[:, j], strict=True)
            ),
            Fraction(0),
        )
        error += (Fraction(float(made[j])) - exact) ** 2
    for w, row in zip(weights, given, strict=True):
        squared = sum((Fraction(float(x)) ** 2 for x in row), Fraction(0)) * Fraction(float(w)) ** 2
        longest = max(longest, squared)
    assert longest <= (1 + Fraction(allowance(rows, dim))) ** 2
    assert 2 * math.sqrt(error) <= allowance(rows, dim)


# ---------------------------------------------------------------------- what is sent
def test_a_rounded_sum_has_the_mean_of_the_sum() -> None:
    """0.3 in each of 200,000 numbers: 4.9 sigma, false alarm 1e-6."""
    n = 200_000
    rounded = threshold_rounded(np.full(n, 0.3), Stream(derived_key(6)).uniform(n))
    assert set(np.unique(rounded)) == {0, 1}
    assert abs(rounded.mean() - 0.3) < 4.9 * math.sqrt(0.21 / n)


def test_the_noise_of_a_sum_is_skellam() -> None:
    """Zeros round to zeros, whatever the thresholds: what is left is noise. Fails by chance once in a million times."""
    plan = replace(_plan(20_000, 3), local_variance=6)
    assert plan.rounds_once
    sent = plan.protect(torch.zeros(3, plan.dim), Stream(), 1).vector
    drawn = ring_sum([sent], plan.ring.modulus)
    counts = np.histogram(drawn, np.arange(-8.5, 9))[0]
    within = stats.skellam(3, 3).pmf(np.arange(-8, 9))
    expected = plan.dim * np.append(within, 1 - within.sum())
    observed = np.append(counts, plan.dim - counts.sum())
    assert stats.chisquare(observed, expected).pvalue > 1e-6


@pytest.mark.parametrize("bits", [20, 32])
def test_the_sum_decodes_to_that_of_clipped_rows(bits: int) -> None:
    plan = replace(_plan(40, 5, bits=bits), rounds_once=True)
    rows = np.random.default_rng(2).normal(size=(5, 40)) * np.array(
        [[0.001], [0.1], [1.0], [10.0], [1e30]]
    )
    expected = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)).sum(axis=0)
    sent = plan.total([plan.encode(rows, Stream(derived_key(9)), 1)], 1)
    assert np.linalg.norm(sent - expected) <= math.sqrt(40) / plan.scale
    parts = [plan.protect(torch.from_numpy(rows[:3]), Stream(), 1).vector]
    assert len(parts[0]) == 40


def test_sums_of_many_devices_are_rounded_each_by_itself() -> None:
    plan = _plan(30, 4)
    rows = torch.randn(7, 30, generator=torch.Generator().manual_seed(1))
    together = plan.protect_sum(rows, [4, 3], Stream(derived_key(3)), 1).vector
    stream = Stream(derived_key(3))
    each = [plan.protect(own, stream, 1).vector for own in torch.split(rows, [4, 3])]
    np.testing.assert_array_equal(ring_sum([together], 2**32), ring_sum(each, 2**32))
    for counts in ([4, 4], [5, 2]):
        with pytest.raises(UnsafeUpdateError, match="at most 4 rows"):
            plan.protect_sum(rows, counts, stream, 1)


def test_rows_that_are_not_finite_are_refused() -> None:
    plan = _plan(3, 2)
    for bad in (math.nan, math.inf):
        with pytest.raises(UnsafeUpdateError, match="nothing was released"):
            plan.encode(np.array([[1.0, 0.0, 0.0], [bad, 0.0, 1.0]]), Stream(), 1)


# ---------------------------------------------------------------------- which form, on the wire, and its price
def test_the_form_is_chosen_by_its_price() -> None:
    """Sums where they cost a percent of noise at most; rows in small rings, for single rows, and where clients are the
    unit."""
    noise = {"noise": lambda l2, l1: (14.0 * l2) ** 2, "clients": 100, "clip": 1.0}
    large = choose_ring(dim=5130, rows=600, unit=Unit.EXAMPLE, bits=32, **noise)  # type: ignore[arg-type]
    assert large.rounds_once
    of_rows = replace(large, rounds_once=False)
    assert of_rows.l2_sensitivity < large.l2_sensitivity < 1.01 * of_rows.l2_sensitivity
    assert large.l2_sensitivity < 1.003 * large.scale * large.clip
    small = choose_ring(dim=5130, rows=600, unit=Unit.EXAMPLE, bits=20, **noise)  # type: ignore[arg-type]
    single = choose_ring(dim=5130, rows=1, unit=Unit.EXAMPLE, **noise)  # type: ignore[arg-type]
    client = choose_ring(dim=5130, rows=1, **noise)  # type: ignore[arg-type]
    assert not any(plan.rounds_once for plan in (small, single, client))


def test_the_form_travels_and_is_judged() -> None:
    plan = _plan(50, 8, z=2.0)
    record = plan.to_record()
    assert record["rounds_sum"] is True  # the name that records have had since 0.2
    assert mechanism_from_record(record) == plan
    assert "rounds_sum" not in replace(plan, rounds_once=False).to_record()
    with pytest.raises(UnsoundMechanismError, match="rounds_sum"):
        mechanism_from_record({**record, "rounds_sum": 1})
    # One that an integer of 64 bits does not hold is refused, also where a rotation spreads it.
    large = {**record, "scale": 2.0**59, "bits": 64, "rotate": True, "clients": 1}
    with pytest.raises(UnsoundMechanismError, match="does not fit"):
        mechanism_from_record(large)


def test_the_price_is_that_of_the_bound_and_of_a_whole_client_less_than_of_its_rows() -> None:
    plan = _plan(50, 8, z=2.0)
    one, whole = (
        plan.release_to(1e6, unit, NoSampling(), Adversary.SERVER).law
        for unit in (Unit.EXAMPLE, Unit.CLIENT)
    )
    assert isinstance(one, Skellam)
    assert isinstance(whole, Skellam)
    assert one.l2_sensitivity == plan.l2_sensitivity
    assert whole.l2_sensitivity < 8 * one.l2_sensitivity
    scaled = plan.scale * plan.clip
    assert whole.l2_sensitivity == pytest.approx(8 * scaled + math.sqrt(50), rel=1e-9)
    assert whole.l2_sensitivity > 8 * scaled + math.sqrt(50)
    assert plan.noise_multiplier(1e6, Unit.CLIENT) == 1e3 / whole.l2_sensitivity
    for law in (one, whole):
        assert law.l1_sensitivity == law.l2_sensitivity * math.sqrt(50)


def test_all_roundings_of_a_small_device_stay_within_the_bound() -> None:
    """Brute force: all rows from a grid of lengths up to C, in two dimensions, and thresholds on a grid, each row taken
    away."""
    plan = replace(_plan(2, 3, scale=2.5), rounds_once=True)
    points = [(0.0, 0.0), (1.0, 0.0), (0.6, 0.8), (-0.8, 0.6), (0.3, -0.2), (0.2, 0.0)]
    bound, reached = plan.l2_sensitivity**2, 0.0
    thresholds = [np.array(t) for t in itertools.product(np.arange(5) / 5.0, repeat=2)]
    for rows in itertools.product(points, repeat=3):
        whole = plan.scale * np.array(rows).sum(axis=0)
        without = plan.scale * np.array(rows[1:]).sum(axis=0)
        for t in thresholds:
            apart = threshold_rounded(whole, t) - threshold_rounded(without, t)
            reached = max(reached, float(apart @ apart))
    assert plan.scale**2 < reached <= bound
