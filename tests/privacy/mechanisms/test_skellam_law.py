from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from fedsketch.privacy.mechanisms.skellam_law import FloatPmf, exact_pmf, largest_value

VARIANCES = [1, 19, 100, 10_000, 25_000_000, 1 << 36, 1 << 50, 1 << 62]


def _by_the_power_series(mu: int, x: int) -> Decimal:
    """e^-mu times the sum of (mu/2)^(2k+x) / (k! (k+x)!): all terms positive, 120 digits."""
    with localcontext() as context:
        context.prec = 120
        half = Decimal(mu) / 2
        term = half**x / math.factorial(x)
        total = term
        for k in range(1, 4 * mu + 200):
            term *= half * half / (k * (k + x))
            total += term
        return total * Decimal(-mu).exp()


def _by_hankels_expansion(mu: int, x: int) -> Decimal:
    """DLMF 10.40.1, up to the first term below 10^-110: the terms grow to at most e^(x^2 / 2 mu), so 250 digits are
    plenty."""
    with localcontext() as context:
        context.prec = 250
        term = total = Decimal(1)
        k = 0
        while abs(term) > Decimal(10) ** -110:
            k += 1
            term *= Decimal((2 * k - 1) ** 2 - 4 * x * x) / (8 * k * mu)
            total += term
        pi = Decimal(
            "3.141592653589793238462643383279502884197169399375105820974944592"
            "30781640628620899862803482534211706798214808651"
        )
        return total / (2 * pi * mu).sqrt()


def _places(mu: int) -> list[int]:
    deviation = math.isqrt(mu)
    return sorted({0, 1, 2, deviation // 2, deviation, 3 * deviation + 1, 7 * deviation, 12 * deviation})  # fmt: skip


@pytest.mark.parametrize("bits", [64, 128, 300])
@pytest.mark.parametrize("mu", VARIANCES)
def test_integer_probabilities_are_right_to_the_stated_error(mu: int, bits: int) -> None:
    """Against another formula, in another arithmetic: within 4 units of the last bit."""
    reference = _by_the_power_series if mu <= 100 else _by_hankels_expansion
    for x in _places(mu):
        with localcontext() as context:
            context.prec = 120
            expected = reference(mu, x) * Decimal(2) ** bits
            assert abs(exact_pmf(mu, x, bits) - expected) < 4
        assert exact_pmf(mu, -x, bits) == exact_pmf(mu, x, bits)


@pytest.mark.parametrize("mu", VARIANCES)
def test_float_probabilities_stay_well_within_their_error(mu: int) -> None:
    """The derived bound is 2^-45 P(0), a 32nd of `error`; both ends of the range and random places."""
    reach = 1 << largest_value(mu, 128).bit_length()
    pmf = FloatPmf(mu, reach)
    near = np.random.default_rng(1).integers(-6, 6, 20, endpoint=True) * math.isqrt(mu)
    x = np.concatenate([[-reach, reach - 1, 0, 1], np.clip(near, -reach, reach - 1)])
    expected = [exact_pmf(mu, int(one), 128) / 2.0**128 for one in x]
    assert np.abs(pmf(x) - expected).max() < pmf.error / 32
    assert pmf.error == pytest.approx(2.0**-40 * expected[2])


@pytest.mark.parametrize("mu", VARIANCES)
def test_tail_bound_holds_and_is_not_wasteful(mu: int) -> None:
    """The mass beyond t is below 2^-128, and above it one eighth nearer to zero. Both sides are bounded by blocks of
    (t
    + 32) / 32 integers: the probabilities fall with |x|, and so do the ratios from one block to the next."""
    t = largest_value(mu, 128)
    block = t // 32 + 1
    first, second = (exact_pmf(mu, t + 1 + k * block, 400) for k in range(2))
    assert 2 * block * first * first // (first - second) < 1 << (400 - 128)
    assert 2 * block * exact_pmf(mu, t - t // 8 + block, 400) > 1 << (400 - 128)


def test_probabilities_sum_to_one() -> None:
    """Over all integers of the range, in units of 2^-128: each is wrong by less than 4."""
    reach = largest_value(5, 128)
    total = sum(exact_pmf(5, x, 128) for x in range(-reach, reach + 1))
    assert abs(total - (1 << 128)) < 4 * (2 * reach + 1) + 1


def test_work_does_not_grow_with_the_variance() -> None:
    terms = []
    for mu in [*range(1, 120), *(1 << k for k in range(7, 63))]:
        pmf = FloatPmf(mu, 1 << largest_value(mu, 128).bit_length())
        terms.append(pmf._weights.size)
    assert max(terms) <= 129
