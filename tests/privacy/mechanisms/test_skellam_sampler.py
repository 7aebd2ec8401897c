from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats

from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.skellam_law import exact_pmf
from fedsketch.privacy.mechanisms.skellam_sampler import (
    LARGEST_VARIANCE,
    _Proposals,
    _proposals,
    sample_skellam,
)

VARIANCES = [1, 100, 10_000, 25_000_000, 1 << 36, 1 << 50, LARGEST_VARIANCE]
WITH_WIDE_CELLS = [25_000_000, 1 << 36, LARGEST_VARIANCE]
FALSE_ALARM = 1e-6
SIGMAS = 4.9  # of a normal statistic, two-sided: false alarm 1e-6


def _draws(mu: int, n: int, *labels: str) -> np.ndarray:
    return sample_skellam(mu, n, Stream(derived_key(1, *labels, mu)))


# ---------------------------------------------------------------------- the law of the draws
def _chi_square(draws: np.ndarray, mu: int) -> float:
    """The p-value over about 60 intervals of equal probability, or over single values where these are fewer.

    The reference is scipy's law up to variance 10^4. Above, it is the normal law with the continuity correction: the
    two distribution functions differ by less than 1/mu.
    """
    edges = np.unique(np.round(stats.norm.ppf(np.arange(1, 60) / 60) * np.sqrt(float(mu))))
    normal = stats.norm.cdf((edges + 0.5) / np.sqrt(float(mu)))
    below = stats.skellam.cdf(edges, mu / 2, mu / 2) if mu <= 10_000 else normal
    expected = np.diff(below, prepend=0.0, append=1.0) * draws.size
    counts = np.bincount(np.searchsorted(edges, draws), minlength=edges.size + 1)
    return float(stats.chisquare(counts, expected).pvalue)


@pytest.mark.parametrize("mu", VARIANCES)
def test_draws_follow_the_law(mu: int) -> None:
    assert _chi_square(_draws(mu, 1_000_000, "law"), mu) > FALSE_ALARM


@pytest.mark.parametrize("mu", VARIANCES[1:-1])
def test_two_percent_of_variance_more_would_be_noticed(mu: int) -> None:
    """The same statistic on draws of a wrong variance."""
    assert _chi_square(_draws(mu + mu // 50, 1_000_000, "planted"), mu) < FALSE_ALARM


def test_single_values_have_scipys_probabilities() -> None:
    """Every value of variance 100 that 1,000,000 draws hit ten times or more, by the binomial's normal law."""
    draws = _draws(100, 1_000_000, "values")
    values = np.arange(-40, 41)
    expected = stats.skellam.pmf(values, 50.0, 50.0)
    counts = np.array([np.sum(draws == value) for value in values])
    z = (counts - draws.size * expected) / np.sqrt(draws.size * expected)
    assert np.abs(z).max() < 5.7  # false alarm 1e-6 over all of them


@pytest.mark.parametrize("mu", VARIANCES)
def test_moments_are_those_of_the_law(mu: int) -> None:
    """Mean, variance mu, third moment 0 and fourth moment 3 mu^2 + mu, each by its own normal law: all even cumulants
    are mu, so E X^6 = 15 mu^3 + 15 mu^2 + mu and E X^8 = 105 mu^4 + 210 mu^3 + 63 mu^2 + mu."""
    n, m = 1_000_000, float(mu)
    draws = _draws(mu, n, "moments").astype(float)
    sixth = 15 * m**3 + 15 * m**2 + m
    eighth = 105 * m**4 + 210 * m**3 + 63 * m**2 + m
    fourth = 3 * m**2 + m
    for power, moment, spread in (
        (1, 0.0, m),
        (2, m, fourth - m**2),
        (3, 0.0, sixth),
        (4, fourth, eighth - fourth**2),
    ):
        assert abs(np.mean(draws**power) - moment) < SIGMAS * np.sqrt(spread / n), power


@pytest.mark.parametrize("mu", VARIANCES)
def test_signs_are_fair(mu: int) -> None:
    draws = _draws(mu, 1_000_000, "signs")
    assert abs(np.sum(np.sign(draws))) < SIGMAS * np.sqrt(np.count_nonzero(draws))


@pytest.mark.parametrize("mu", VARIANCES)
def test_draws_are_uncorrelated(mu: int) -> None:
    """Neighbours, and places one block apart; the numbers and their squares."""
    draws = _draws(mu, 1_000_000, "independence").astype(float) / np.sqrt(float(mu))
    for series in (draws, draws**2 - np.mean(draws**2)):
        for lag in (1, 2, 1 << 15):
            product = series[lag:] * series[:-lag]
            assert abs(np.mean(product)) < SIGMAS * np.mean(series**2) / np.sqrt(product.size)


def test_sum_of_clients_is_skellam_again() -> None:
    """Five clients of variance 2 give exactly variance 10: chi-square over the values, false alarm 1e-6."""
    total = sum(sample_skellam(2, 200_000, Stream(derived_key(3, c))) for c in range(5))
    assert _chi_square(np.asarray(total), 10) > FALSE_ALARM


# ---------------------------------------------------------------------- exactness of the parts
def _cells(table: _Proposals, n: int) -> Iterator[tuple[int, int]]:
    """Places (cell, x) within about six deviations of zero: the first, the last and a middle one of a cell."""
    rng = np.random.default_rng(5)
    width = 1 << table.width_bits
    deviations = int(6 * float(table.mu) ** 0.5)
    for x in rng.integers(-deviations, deviations, n):
        cell = int((x + table.reach) >> table.width_bits)
        first = (cell << table.width_bits) - table.reach
        for place in {0, width - 1, int(rng.integers(width))}:
            yield cell, first + place


@pytest.mark.parametrize("mu", [1, 19, *VARIANCES[1:]])
def test_table_gives_every_part_its_words_exactly(mu: int) -> None:
    """Counting the words of all columns, in integers: 2^64 in all, b_c and h_c - b_c for every integer of a cell."""
    table = _proposals(mu)
    columns = 2 << table.cell_bits
    place_bits = table.cell_bits + 1 + table.width_bits
    column = 1 << (64 - place_bits)
    words = [0] * columns
    for i, (threshold, other) in enumerate(
        zip(table.threshold.tolist(), table.other.tolist(), strict=True)
    ):
        assert threshold % (1 << place_bits) == 0
        words[i] += threshold >> place_bits
        words[other] += column - (threshold >> place_bits)
    sure, most = table.sure.tolist(), table.most.tolist()
    conditional = [h - b for b, h in zip(sure, most, strict=True)]
    assert words == sure + conditional
    assert sum(words) << table.width_bits == 1 << 64
    assert min(conditional) >= 0
    assert table.accepted > 0.98 * 2**64  # few proposals start over


@pytest.mark.parametrize("mu", [1, 19, *VARIANCES[1:]])
def test_bounds_of_a_cell_enclose_its_probabilities(mu: int) -> None:
    table = _proposals(mu)
    for cell, x in _cells(table, 30):
        target = table.accepted * exact_pmf(mu, x, 160)
        assert int(table.sure[cell]) << 160 <= target <= int(table.most[cell]) << 160


class _Scripted(Stream):
    def __init__(self, *words: int) -> None:
        super().__init__(derived_key(4))
        self.words = list(words)

    def uint64(self, n: int) -> np.ndarray:
        return np.array([self.words.pop(0) for _ in range(n)], dtype=np.uint64)


@pytest.mark.parametrize("mu", WITH_WIDE_CELLS)
def test_condition_is_decided_exactly_at_the_last_bit(mu: int) -> None:
    """The word after a conditional proposal is U. The largest that lets x through, and the next one, which shares its
    leading bits with the limit and takes another word; then the same with that one. All are far nearer to the limit
    than floats can tell."""
    table = _proposals(mu)
    start_over = int(np.flatnonzero(table.threshold[: 1 << table.cell_bits])[0])
    fresh = (start_over << table.width_bits) - table.reach
    checked = 0
    for cell, x in _cells(table, 12):
        column = cell + (1 << table.cell_bits)
        sure, spread = int(table.sure[cell]), int(table.most[cell] - table.sure[cell])
        if not table.threshold[column]:
            continue
        first = (cell << table.width_bits) - table.reach
        proposal = (x - first) << (table.cell_bits + 1) | column
        # (A P(x) - b) / (h - b) to 128 bits.
        limit = (table.accepted * exact_pmf(mu, x, 320) - (sure << 320)) // (spread << 192)
        high, low = divmod(limit, 1 << 64)
        for script, taken in (
            ((high - 1,), True),
            ((high + 1, start_over), False),
            ((high, low - 1), True),
            ((high, low + 1, start_over), False),
        ):
            stream = _Scripted(proposal, *script)
            assert sample_skellam(mu, 1, stream)[0] == (x if taken else fresh)
            assert stream.words == []
        checked += 1
    assert checked >= 10


def test_integers_and_floats_decide_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """With floats that are never trusted, the same words give the same draws."""
    table = _proposals(25_000_000)
    expected = table.draw(4_000, Stream(derived_key(6)))
    monkeypatch.setattr(table.pmf, "error", np.inf)
    np.testing.assert_array_equal(table.draw(4_000, Stream(derived_key(6))), expected)


# ---------------------------------------------------------------------- bounded work
@pytest.mark.parametrize("mu", [25_000_000, 1 << 36, 1 << 60])
def test_memory_and_set_up_are_bounded_at_any_variance(mu: int) -> None:
    """Measured: 13 ms and 2.2 MiB. The limits leave room for a busy machine."""
    _proposals.cache_clear()
    began = time.process_time()
    sample_skellam(mu, 1, Stream())
    assert time.process_time() - began < 0.5
    _proposals.cache_clear()
    tracemalloc.start()
    try:
        sample_skellam(mu, 1 << 15, Stream())
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert kept < 2 << 20


def test_no_variance_gives_zeros_and_nonsense_is_refused() -> None:
    assert np.all(sample_skellam(0, 5, Stream()) == 0)
    assert sample_skellam(3, 0, Stream()).size == 0
    with pytest.raises(ValueError, match="whole number"):
        sample_skellam(-1, 5, Stream())
    with pytest.raises(ValueError, match="whole number"):
        sample_skellam(1.5, 5, Stream())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"at most 2\^62"):
        sample_skellam(LARGEST_VARIANCE + 1, 5, Stream())
