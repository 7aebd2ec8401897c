"""Public randomness: frozen bits, the right distributions, and nothing that depends on process or threads."""

import hashlib
import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from fedsketch.sketching.seeded_sketch import PublicStream, Purpose

FROZEN_WORDS = ["0x7fe510a0cf76964a", "0xbd59391d7c35cf94"]
FROZEN_GAUSSIANS = "db50826d692ebfd5ce8a914f0af8563fff88acf26e6f54b1aeffd8f09932f366"
FROZEN_SIGNS = "86c42e064f8d688a39342f3f02184aab6f5a7ea405c77001f18fcbe65f2bceed"
FROZEN_BUCKETS = [223, 820, 646, 170]
FROZEN_SUBSET = [170, 397, 495, 684]


def gaussian(n: int, *index: int, seed: int = 11) -> np.ndarray:
    return PublicStream(seed, Purpose.GAUSSIAN, *index).gaussian(n)


def test_the_bits_are_frozen() -> None:
    """Clients of other versions and machines must make these very numbers."""
    words = PublicStream(2**128 - 1, Purpose.GAUSSIAN, 3, 5)
    assert [hex(word) for word in words.uint64(2)] == FROZEN_WORDS
    assert hashlib.sha256(gaussian(100_001).astype("<f4").tobytes()).hexdigest() == FROZEN_GAUSSIANS
    signs = PublicStream(5, Purpose.SIGNS).signs(100)
    assert hashlib.sha256(signs.astype("<f4").tobytes()).hexdigest() == FROZEN_SIGNS
    assert PublicStream(5, Purpose.BUCKETS).below(1000, 4).tolist() == FROZEN_BUCKETS
    assert PublicStream(5, Purpose.COORDINATES).subset(1000, 4).tolist() == FROZEN_SUBSET


def test_words_are_the_raw_stream_of_the_bit_generator() -> None:
    sequence = np.random.SeedSequence(entropy=9, spawn_key=(int(Purpose.SIGNS), 1, 2))
    raw = np.random.SFC64(sequence).random_raw(1000)
    assert np.array_equal(PublicStream(9, Purpose.SIGNS, 1, 2).uint64(1000), raw)


def test_gaussians_have_the_normal_distribution() -> None:
    """Kolmogorov-Smirnov over 4 million at p > 1e-4, which is the false-alarm rate; the seed is fixed."""
    numbers = gaussian(4_000_000)
    assert stats.kstest(numbers, "norm").pvalue > 1e-4
    # A normal's count beyond 4.5 of 4 million has mean 27.2: outside [8, 53] with probability 1e-5.
    assert 8 <= int((np.abs(numbers) > 4.5).sum()) <= 53


def test_gaussians_have_the_normal_moments() -> None:
    """Five standard errors each: a false alarm in 2e-6 of all seeds."""
    numbers = gaussian(4_000_000, seed=12).astype(np.float64)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        error = (numbers**power).mean() - moment
        assert abs(error) < 5 * math.sqrt(variance / len(numbers))


def test_streams_and_neighbours_are_uncorrelated() -> None:
    """Five standard errors: a false alarm in 2e-6 of all seeds, for each of five pairs."""
    n = 400_000
    first = gaussian(2 * n, 0, 0)
    others = [gaussian(n, 0, 1), gaussian(n, 1, 0), gaussian(n, 0, 0, seed=12), first[1 : n + 1]]
    others.append(PublicStream(11, Purpose.PROBES, 0, 0).gaussian(n))
    for other in others:
        assert abs(np.corrcoef(first[:n], other)[0, 1]) < 5 / math.sqrt(n)


def test_signs_are_fair_and_buckets_uniform() -> None:
    """Five standard errors, and chi-square at 1e-5: false-alarm rates."""
    signs = PublicStream(1, Purpose.SIGNS).signs(1_000_003)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(signs.mean()) < 5 / math.sqrt(len(signs))
    counts = np.bincount(PublicStream(1, Purpose.BUCKETS).below(37, 100_000), minlength=37)
    assert len(counts) == 37
    assert stats.chisquare(counts).pvalue > 1e-5


def test_a_subset_is_distinct_sorted_and_hits_all_alike() -> None:
    """Chi-square-like, at five standard errors of each count: 20 of them, false alarms below 2e-5."""
    hits = np.zeros(20)
    for seed in range(4000):
        chosen = PublicStream(seed, Purpose.COORDINATES).subset(20, 6)
        assert len(chosen) == 6
        assert (np.diff(chosen) > 0).all()
        hits[chosen] += 1
    assert np.abs(hits - 1200).max() < 5 * math.sqrt(4000 * 0.3 * 0.7)
    assert PublicStream(1, Purpose.COORDINATES).subset(5, 5).tolist() == [0, 1, 2, 3, 4]


PROGRAM = """
import hashlib
import torch
from fedsketch.sketching.count_sketch import CountSketch
from fedsketch.sketching.gaussian import GaussianSketch
from fedsketch.sketching.hadamard import HadamardSketch

gaussian = GaussianSketch(19, 40_000, 77)
bits = [gaussian.block(slice(0, 19))]
bits += [sketch.adjoint(torch.eye(3)) for sketch in (HadamardSketch(3, 999, 77), CountSketch(3, 999, 77))]
bits += [gaussian.adjoint(torch.eye(19, 19)[4])]
print(*(hashlib.sha256(part.numpy().tobytes()).hexdigest() for part in bits))
"""


def test_another_process_with_other_threads_makes_the_same_sketches(
    other_process: Callable[[str, int], str],
) -> None:
    one, two = other_process(PROGRAM, 1), other_process(PROGRAM, 3)
    assert len(one.split()) == 4
    assert one == two
