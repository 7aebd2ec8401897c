from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from fedsketch.privacy.mechanisms.randomness import Stream, derived_key

KEY = derived_key(1, "test")


def test_stream_is_the_aes_ctr_keystream() -> None:
    reference = Cipher(algorithms.AES(KEY), modes.CTR(bytes(16))).encryptor().update(bytes(1000))
    assert Stream(KEY).bytes(1000) == reference
    stream = Stream(KEY)
    pieces = stream.uint64(3).tobytes() + stream.uint64(50).tobytes() + stream.bytes(16)
    assert pieces == reference[: len(pieces)]


def test_fresh_streams_differ_and_keyed_ones_repeat() -> None:
    assert Stream().bytes(32) != Stream().bytes(32)
    assert Stream(KEY).bytes(32) == Stream(KEY).bytes(32)


def test_a_stream_goes_on() -> None:
    stream = Stream(KEY)
    assert stream.bytes(32) != stream.bytes(32)


def test_closed_stream_gives_nothing() -> None:
    with Stream(KEY) as stream:
        stream.bytes(8)
    with pytest.raises(ValueError, match="closed"):
        stream.uint64(1)
    stream.close()  # again is fine


def test_key_length_is_checked() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        Stream(b"short")


def test_derived_keys_separate_their_labels() -> None:
    keys = {
        derived_key(1),
        derived_key(2),
        derived_key(1, "a", "bc"),
        derived_key(1, "ab", "c"),
        derived_key(1, "abc"),
        derived_key(1, 7),
        derived_key(1, "7"),
        derived_key(1, 7, 7),
    }
    assert len(keys) == 8
    assert derived_key(1, "a", 3) == derived_key(1, "a", 3)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 65_537])
def test_lengths(n: int) -> None:
    stream = Stream(KEY)
    assert len(stream.bytes(n)) == n
    for draw in (stream.uint64, stream.uniform, stream.gaussian):
        assert draw(n).shape == (n,)


def test_uniforms_are_strictly_inside_and_uniform() -> None:
    """Kolmogorov-Smirnov on 200,000 fixed draws; false alarm 1e-6."""
    u = Stream(KEY).uniform(200_000)
    assert u.min() > 0.0
    assert u.max() < 1.0
    assert stats.kstest(u, "uniform").pvalue > 1e-6


def test_the_smallest_word_gives_no_zero_and_the_largest_no_one() -> None:
    class Extreme(Stream):
        def uint64(self, n: int) -> np.ndarray:
            return np.array([0, 2**64 - 1] * (n // 2), dtype=np.uint64)

    u = Extreme(KEY).uniform(2)
    assert 0.0 < u[0] < u[1] < 1.0
    assert np.all(np.isfinite(Extreme(KEY).gaussian(4)))


def test_gaussians_have_the_normal_law() -> None:
    """Kolmogorov-Smirnov (1e-6), variance by its chi-square law (1e-6), tail beyond 4 by its Poisson law (1e-6)."""
    n = 400_000
    x = Stream(KEY).gaussian(n)
    assert stats.kstest(x, "norm").pvalue > 1e-6
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], n)
    assert low < np.sum(x**2) < high
    expected = n * 2 * stats.norm.sf(4.0)
    few, many = stats.poisson.ppf([5e-7, 1 - 5e-7], expected)
    assert few <= np.sum(np.abs(x) > 4.0) <= many


def test_both_halves_of_a_pair_are_independent() -> None:
    """Correlation and correlation of squares between the two halves of a block: 5-sigma limits, false alarm 1.2e-6
    together."""
    n = 1 << 15
    x = Stream(KEY).gaussian(2 * n)
    first, second = x[:n], x[n:]
    assert abs(np.mean(first * second)) < 5 / np.sqrt(n)
    assert abs(np.mean((first**2 - 1) * (second**2 - 1))) < 5 * 2 / np.sqrt(n)
