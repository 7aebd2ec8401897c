"""L2-CSGM's uploads: both bounds hold in exact integers, the sum is unbiased and as noisy as it says, and nothing else
is on the wire."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from fedsketch.errors import UnsafeUpdateError, UnsoundMechanismError, UnsupportedReleaseError
from fedsketch.privacy.accounting import coordinate_sampling as theorem
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.calibration import calibrate
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    CoordinateSampledGaussian,
    Gaussian,
    NoSampling,
    Release,
    Unit,
)
from fedsketch.privacy.mechanisms.coordinate_sampling import CoordinateSampling, default_peak
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.records import mechanism_from_record

BITS = [8, 16, 32]
ROUND = 3


def _law(dim: int = 300, rate: float = 0.1, bits: int = 16, **changes: Any) -> CoordinateSampling:
    clip = changes.pop("clip", 1.0)
    peak = changes.pop("peak", default_peak(clip, dim, 10))
    return CoordinateSampling(dim=dim, clip=clip, peak=peak, rate=rate, bits=bits, **changes)


def _stream(*labels: int) -> Stream:
    return Stream(derived_key(7, "csgm", *labels))


def _units(count: int, dim: int) -> torch.Tensor:
    """Random vectors of norm 1."""
    rows = torch.from_numpy(np.random.default_rng(5).normal(size=(count, dim)))
    return rows / rows.norm(dim=1, keepdim=True)


# ---------------------------------------------------------------------- bounds
@pytest.mark.parametrize("bits", BITS)
@given(
    seed=st.integers(0, 2**32), spikes=st.integers(1, 40), size=st.sampled_from([1e-9, 1.0, 1e30])
)
def test_what_leaves_is_within_both_bounds(bits: int, seed: int, spikes: int, size: float) -> None:
    """All integers of a row, whatever it was: few or many numbers, tiny or huge."""
    law, rng = _law(40, 1.0, bits), np.random.default_rng(seed)
    row = np.zeros((1, 40))
    row[0, :spikes] = size * rng.choice([-1.0, 1.0, 3.0], spikes)
    vector = law.protect(torch.from_numpy(row), _stream(seed), ROUND).vector
    integers = [int(value) for value in law._kept(vector)]
    assert len(integers) == 40
    assert max(map(abs, integers)) <= law.top
    assert sum(value * value for value in integers) <= law.l2_bound_squared
    assert law.l2_bound_squared * law.step**2 <= law.l2_sensitivity**2


def test_rounding_costs_next_to_nothing() -> None:
    """In units of the clip: 8 bits a thousandth at 25,450 numbers, 16 bits a hundred-thousandth."""
    peak = default_peak(1.0, 25_450, 100)
    costs = [_law(25_450, 0.01, bits, peak=peak).l2_sensitivity - 1 for bits in BITS]
    assert 0 < costs[2] < costs[1] < 1e-5 < costs[0] < 1.2e-3


def test_a_rotated_vector_has_hardly_a_number_beyond_the_peak() -> None:
    """2 exp(-ln(d n)) = 2/(d n) for each of d n numbers, if they were Gaussian: Poisson with mean 2, below 14 with
    probability 1 - 1e-6."""
    dim, clients = 1000, 10
    law = _law(dim, 1.0, 32, peak=default_peak(1.0, dim, clients))
    spiky = torch.eye(dim)[:clients].double()
    for rows in (_units(clients, dim), spiky):
        sent = [law.protect(row[None], _stream(i), ROUND).vector for i, row in enumerate(rows)]
        assert law.clipped(sent) * dim * clients < 14
    cut = replace(law, peak=0.5 / math.sqrt(dim))
    beyond = 2 * stats.norm.sf(0.5)
    sent = [cut.protect(row[None], _stream(), ROUND).vector for row in _units(clients, dim)]
    assert cut.clipped(sent) == pytest.approx(beyond, abs=0.03)


# ---------------------------------------------------------------------- the sum
def _mean(law: CoordinateSampling, rows: torch.Tensor, variance: float, key: int) -> np.ndarray:
    vectors: list[Any] = [
        law.protect(row[None], _stream(key, client), ROUND).vector
        for client, row in enumerate(rows)
    ]
    if variance:
        vectors.append(law.noise_alone(law.dim, variance, _stream(key, -1)))
    return law.total(vectors, ROUND) / len(rows)


@pytest.mark.parametrize("bits", BITS)
def test_with_everything_kept_the_sum_is_the_sum_of_clipped_rows(bits: int) -> None:
    rows = _units(4, 300) * torch.tensor([[0.2], [0.9], [1.0], [70.0]])
    law = _law(300, 1.0, bits)
    wanted = rows[:3].sum(dim=0) + rows[3] / 70.0
    # Each of 4 integers is off by less than a step.
    error = np.abs(4 * _mean(law, rows, 0.0, 0) - wanted.numpy())
    assert np.linalg.norm(error) < 4 * law.step * math.sqrt(300)
    assert np.linalg.norm(error) > 0.01 * law.step


@pytest.mark.parametrize(("rate", "bits"), [(0.05, 8), (0.5, 32)])
def test_the_mean_squared_error_is_that_of_corollary_4_2(rate: float, bits: int) -> None:
    """sigma^2/(n gamma)^2 per number, and the sampling term (1 - gamma)/(gamma n^2) sum |x_i|^2; within 3 standard
    errors of 300 rounds. And unbiased: the mean of the errors is as small as their variance lets it be."""
    clients, dim, repeats = 5, 64, 300
    rows = _units(clients, dim)
    # Nothing is cut here: no rotated number of these rows is larger.
    law = _law(dim, rate, bits, peak=0.6)
    variance = 0.3**2
    truth = rows.mean(dim=0).numpy()
    errors = np.stack([_mean(law, rows, variance, key) - truth for key in range(repeats)])
    squared = np.sum(errors**2, axis=1)
    wanted = dim * (law.noise_std(variance) / clients) ** 2 + (1 - rate) / (rate * clients)
    standard_error = np.std(squared) / math.sqrt(repeats)
    rounding = dim * law.step**2 / (4 * clients * rate)
    assert -3 * standard_error < np.mean(squared) - wanted < 3 * standard_error + rounding
    assert standard_error < 0.05 * wanted
    # The squared norm of the mean error is about wanted / repeats, with relative deviation sqrt(2 / dim).
    bias = float(np.sum(errors.mean(axis=0) ** 2)) * repeats / wanted
    assert bias < 1 + 6 * math.sqrt(2 / dim)


def test_the_servers_noise_is_as_large_as_it_says() -> None:
    """Chi-square with 20,000 degrees of freedom; false alarm 1e-6. It is not divided by gamma again."""
    law = _law(20_000, 0.01, clip=0.3)
    noise = law.total([law.noise_alone(1, 4.0, _stream())], ROUND)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], law.dim)
    assert low < np.sum((noise / law.noise_std(4.0)) ** 2) < high
    assert law.noise_std(4.0) == pytest.approx(0.6)


# ---------------------------------------------------------------------- the wire
@pytest.mark.parametrize("bits", BITS)
def test_a_seed_and_the_kept_values_are_all_that_is_sent(bits: int) -> None:
    law, rows = _law(50_000, 0.01, bits), _units(1, 50_000)
    sent = [law.protect(rows, Stream(), ROUND).vector for _ in range(2)]
    for vector in sent:
        kept = (len(vector) - 16) / (bits // 8)
        assert abs(kept - 500) < 5 * math.sqrt(500)  # 100 times fewer values
        assert law.fault(vector, 50_000) is None
    assert len(law.typical_upload(50_000)) == 16 + 500 * bits // 8
    assert law.sent(50_000) == 500
    assert sent[0][:16].tobytes() != sent[1][:16].tobytes()


def test_masks_are_independent_draws_with_their_rate() -> None:
    """Counts over 400 seeds: mean, variance and the overlap of two masks; each within 5 standard deviations."""
    law = _law(1000, 0.2)
    masks = np.stack([law._mask(derived_key(seed, "mask")) for seed in range(400)])
    counts = masks.sum(axis=0)
    scale = 400 * 0.2 * 0.8
    assert abs(counts.mean() - 80) < 5 * math.sqrt(scale / 1000)
    assert abs(counts.var() / scale - 1) < 5 * math.sqrt(2 / 1000)
    overlap = (masks[::2] & masks[1::2]).mean()
    assert abs(overlap - 0.04) < 5 * math.sqrt(0.04 * 0.96 / 200_000)


def test_the_length_of_an_upload_does_not_depend_on_the_data() -> None:
    law = _law(1000, 0.1)
    rows = (torch.zeros(1, 1000), 1e6 * _units(1, 1000))
    quiet, loud = (law.protect(row, _stream(1), ROUND).vector for row in rows)
    assert np.array_equal(quiet[:16], loud[:16])
    assert len(quiet) == len(loud)
    assert not np.array_equal(quiet, loud)


def test_the_server_takes_no_upload_of_another_form() -> None:
    law = _law(1000, 0.1, 8)
    good = law.protect(_units(1, 1000), _stream(), ROUND).vector
    assert law.fault(good, 1000) is None
    assert "bytes instead of" in str(law.fault(good[:-1], 1000))
    assert "bytes instead of" in str(law.fault(np.append(good, np.uint8(0)), 1000))
    assert "seed" in str(law.fault(good[:9], 1000))
    assert "seed" in str(law.fault(np.zeros(1000, np.float32), 1000))
    beyond = good.copy()
    beyond[20] = 128  # stands for -128
    assert "out of range" in str(law.fault(beyond, 1000))


@pytest.mark.parametrize("row", [torch.full((1, 300), math.nan), torch.full((1, 300), math.inf)])
def test_rows_without_a_norm_are_not_released(row: torch.Tensor) -> None:
    with pytest.raises(UnsafeUpdateError, match="nan or inf"):
        _law().protect(row, _stream(), ROUND)


@pytest.mark.parametrize("shape", [(2, 300), (1, 299), (300,)])
def test_rows_of_another_shape_are_not_released(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsafeUpdateError, match="one row of 300"):
        _law().protect(torch.zeros(shape), _stream(), ROUND)


def test_a_record_brings_it_back() -> None:
    law = _law()
    assert mechanism_from_record(law.to_record()) == law
    assert law.ring is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0.0},
        {"rate": 1.5},
        {"bits": 12},
        {"peak": 0.0},
        {"peak": 1e-9},
        {"clip": 0.0},
        {"dim": 0},
        {"rows": 2},
        {"unit": "example"},
        {"clip": math.inf},
        {"peak": math.nan},
    ],
)
def test_unsound_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnsoundMechanismError):
        mechanism_from_record({**_law().to_record(), **wrong})


def test_it_cannot_be_masked() -> None:
    law = _law()
    with pytest.raises(UnsoundMechanismError, match="ring integers"):
        law.protect_nothing(_stream())


# ---------------------------------------------------------------------- the price
def _seen(law: CoordinateSampling, z: float, adversary: Adversary = Adversary.MODEL) -> Release:
    return law.release_to(z**2, Unit.CLIENT, NoSampling(), adversary)


def test_what_is_booked_is_what_was_added() -> None:
    law = _law(10_000, 0.05, 8, clip=0.3)
    booked = _seen(law, 2.0)
    assert isinstance(booked.law, CoordinateSampledGaussian)
    assert booked.law.sigma == pytest.approx(0.05 * 2.0 * 0.3)
    assert booked.law.rate == 0.05
    assert (booked.law.l2, booked.law.linf) == (law.l2_sensitivity, law.peak)
    assert booked.adjacency is Adjacency.ZERO_OUT
    assert law.noise_multiplier(4.0, Unit.CLIENT) == 2.0


def test_with_everything_kept_it_is_the_gaussian_mechanism() -> None:
    law = _law(10_000, 1.0, 32)
    booked = _seen(law, 2.0).law
    assert isinstance(booked, Gaussian)
    assert booked.noise_multiplier == pytest.approx(2.0, rel=1e-6)
    assert booked.noise_multiplier < 2.0  # rounding is paid for


@pytest.mark.parametrize(("ratio", "noise"), [(30, 2.7560), (300, 1.2209), (3000, 1.1957)])
def test_the_noise_for_a_budget_is_that_of_the_design(ratio: float, noise: float) -> None:
    """One release at epsilon 5, delta 1e-8, gamma 0.01; other orders than the design's change the last digits."""
    law = _law(10**8, 0.01, 32, peak=1.0 / ratio)
    found = calibrate(lambda z: _seen(law, z), rounds=1, epsilon=5.0, delta=1e-8)
    assert found == pytest.approx(noise, rel=3e-3)


def test_nothing_is_promised_about_the_server_or_examples() -> None:
    with pytest.raises(UnsupportedReleaseError, match="trusted"):
        Accountant(1e-5).record(_seen(_law(), 1.0, Adversary.SERVER))
    with pytest.raises(UnsoundMechanismError, match="unit=client"):
        _law().release_to(1.0, Unit.EXAMPLE, NoSampling(), Adversary.MODEL)


@pytest.mark.parametrize("order", [2.0, 5.0])
def test_the_theorem_holds_for_integers_that_were_rounded_at_random(order: float) -> None:
    """The exact divergences of the law of q's masked numbers with noise, by quadrature: a number a between two steps is
    the lower or the upper one, and is kept with probability gamma. Against zeros, in both directions, for the flattest
    vector and another."""
    law = _law(16, 0.2, 8, peak=0.5)
    sigma = 0.25
    curve = theorem.curve(sigma, law.rate, law.l2_sensitivity, law.peak, np.array([order]))[0]
    flattest, other = [0.4999] * 4, [0.4321, 0.4, 0.4, 0.4, 0.3, 0.2]
    exact = [
        max(np.array([_divergences(law, size, sigma, order) for size in sizes]).sum(axis=0))
        for sizes in (flattest, other)
    ]
    assert all(sum(size**2 for size in sizes) <= 1.0 for sizes in (flattest, other))
    assert exact[1] < exact[0] <= curve
    assert exact[0] > 0.8 * curve


def _divergences(
    law: CoordinateSampling, size: float, sigma: float, order: float
) -> tuple[float, float]:
    steps = size / law.step
    low, up = math.floor(steps) * law.step, math.ceil(steps) * law.step
    x = np.arange(-12 * sigma, 12 * sigma + order, sigma / 50)
    kept = special.logsumexp(
        [stats.norm.logpdf(x, low, sigma), stats.norm.logpdf(x, up, sigma)],
        axis=0,
        b=np.array([[1 - steps % 1], [steps % 1]]),
    )
    q = stats.norm.logpdf(x, 0.0, sigma)
    p = np.logaddexp(math.log1p(-law.rate) + q, math.log(law.rate) + kept)
    width = math.log(x[1] - x[0])
    return tuple(
        float(special.logsumexp(order * a + (1 - order) * b) + width) / (order - 1)
        for a, b in ((p, q), (q, p))
    )  # type: ignore[return-value]
