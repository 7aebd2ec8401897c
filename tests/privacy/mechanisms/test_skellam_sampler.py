from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.skellam_sampler import _alias_table, sample_skellam


def _law_of_the_table(mu: int) -> np.ndarray:
    """The exact law of |x| that the table draws from, in float64."""
    table = _alias_table(mu)
    cells = 1 << table.index_bits
    one = 1 << (127 - table.index_bits)
    threshold = [(int(h) << 64) + int(low) for h, low in zip(table.high, table.low, strict=True)]
    keep = np.array([t / one for t in threshold]) / cells
    law = keep.copy()
    np.add.at(law, table.other, np.array([(one - t) / one for t in threshold]) / cells)
    return law


@pytest.mark.parametrize("mu", [1, 2, 10, 1000])
def test_table_has_scipys_skellam_law(mu: int) -> None:
    law = _law_of_the_table(mu)
    x = np.arange(law.size)
    expected = stats.skellam.pmf(x, mu / 2, mu / 2) * np.where(x == 0, 1.0, 2.0)
    np.testing.assert_allclose(law, expected, atol=1e-14)


@pytest.mark.parametrize("mu", [83_521, 22_494_209])
def test_table_has_the_bessel_law_at_working_sizes(mu: int) -> None:
    law = _law_of_the_table(mu)
    x = np.arange(law.size)
    expected = special.ive(x, mu) * np.where(x == 0, 1.0, 2.0)
    np.testing.assert_allclose(law, expected, rtol=1e-8, atol=1e-16)
    assert np.sum(law * x.astype(float) ** 2) == pytest.approx(mu, rel=1e-11)


def test_draws_follow_scipys_pmf() -> None:
    """Chi-square of 400,000 draws at variance 3 over signed values -6..6 and the rest; false alarm 1e-6."""
    draws = sample_skellam(3, 400_000, Stream(derived_key(1, "skellam")))
    values = np.arange(-6, 7)
    counts = np.array([np.sum(draws == v) for v in values])
    expected = stats.skellam.pmf(values, 1.5, 1.5) * draws.size
    counts = np.append(counts, draws.size - counts.sum())
    expected = np.append(expected, draws.size - expected.sum())
    assert stats.chisquare(counts, expected).pvalue > 1e-6


@pytest.mark.parametrize("mu", [3, 83_521, 22_494_209])
def test_drawn_noise_has_the_booked_variance(mu: int) -> None:
    """The variance of 500,000 draws by its normal law (fourth moment 3 mu^2 + mu): 4.9 sigma, false alarm 1e-6; the mean likewise."""
    n = 500_000
    draws = sample_skellam(mu, n, Stream(derived_key(2, "variance", mu))).astype(float)
    spread = np.sqrt((2.0 * mu**2 + mu) / n)
    assert abs(np.mean(draws**2) - mu) < 4.9 * spread
    assert abs(np.mean(draws)) < 4.9 * np.sqrt(mu / n)


def test_sum_of_clients_is_skellam_again() -> None:
    """Five clients of variance 2 give exactly variance 10: chi-square over the values, false alarm 1e-6."""
    total = sum(sample_skellam(2, 200_000, Stream(derived_key(3, c))) for c in range(5))
    values = np.arange(-9, 10)
    counts = np.array([np.sum(total == v) for v in values])
    expected = stats.skellam.pmf(values, 5.0, 5.0) * 200_000
    counts = np.append(counts, 200_000 - counts.sum())
    expected = np.append(expected, 200_000 - expected.sum())
    assert stats.chisquare(counts, expected).pvalue > 1e-6


def test_ties_are_refined_by_another_word() -> None:
    table = _alias_table(10)
    cell = int(np.flatnonzero((table.low > 0) & (table.other != np.arange(table.other.size)))[0])
    tied = (int(table.high[cell]) << (table.index_bits + 1)) | cell

    class Scripted(Stream):
        def __init__(self, second: int) -> None:
            super().__init__(derived_key(4))
            self.words = [tied, second]

        def uint64(self, n: int) -> np.ndarray:
            return np.array([self.words.pop(0) for _ in range(n)], dtype=np.uint64)

    below = Scripted(int(table.low[cell]) - 1)
    at = Scripted(int(table.low[cell]))
    assert sample_skellam(10, 1, below)[0] == cell
    assert sample_skellam(10, 1, at)[0] == table.other[cell]
    assert below.words == at.words == []


def test_no_variance_gives_zeros_and_nonsense_is_refused() -> None:
    assert np.all(sample_skellam(0, 5, Stream()) == 0)
    with pytest.raises(ValueError, match="whole number"):
        sample_skellam(-1, 5, Stream())
    with pytest.raises(ValueError, match="whole number"):
        sample_skellam(1.5, 5, Stream())  # type: ignore[arg-type]
