"""The numbers that two devices share: uniform below the prime, and the same for both."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from fedsketch.secagg.two_trips.field import prime_below
from fedsketch.secagg.two_trips.stream import moment_of, numbers, share_input


def plain(one: bytes, count: int, bits: int) -> list[int]:
    """The same numbers, drawn one word at a time."""
    width, found, at = 2 if bits == 16 else 4, [], 0
    stream = hashlib.shake_256(one).digest(100 * width * count)
    while len(found) < count:
        word = int.from_bytes(stream[at : at + width], "little") % (1 << bits)
        at += width
        if word < prime_below(bits):
            found.append(word)
    return found


@pytest.mark.parametrize("bits", [16, 17, 20, 25, 28, 32])
def test_numbers_are_those_of_the_stream_that_are_below_the_prime(bits: int) -> None:
    inputs = [share_input(bytes([i]) * 32, b"m" * 32, i, 7) for i in range(40)]
    drawn = numbers(inputs, 300, bits)
    assert drawn.tolist() == [plain(one, 300, bits) for one in inputs]


def test_words_at_or_above_the_prime_are_passed_over() -> None:
    """65521 to 65535 are: among 400,000 words there are some 90, so the case does occur."""
    inputs = [share_input(bytes([i]) * 32, b"m" * 32, i, 7) for i in range(100)]
    words = [np.frombuffer(hashlib.shake_256(one).digest(8000), "<u2") for one in inputs]
    rejected = [row for row, drawn in enumerate(words) if (drawn >= 65521).any()]
    assert rejected
    drawn = numbers(inputs, 4000, 16)
    assert drawn.max() < 65521
    assert drawn[rejected].tolist() == [plain(inputs[row], 4000, 16) for row in rejected]


def test_few_bits_are_masked_before_they_are_compared() -> None:
    """Comparing whole words at 20 bits would pass over nearly all of them."""
    drawn = numbers([b"x"], 50_000, 20)[0]
    assert abs(float(drawn.mean()) / 2**19 - 1) < 0.02
    assert drawn.max() > 0.999 * 2**20


def test_every_part_of_the_input_counts() -> None:
    moment = moment_of(b"c" * 32, b"b" * 32)
    base = (b"k" * 32, moment, 1, 2)
    others = [
        (b"l" * 32, moment, 1, 2),
        (b"k" * 32, moment_of(b"d" * 32, b"b" * 32), 1, 2),
        (b"k" * 32, moment_of(b"c" * 32, b"a" * 32), 1, 2),
        (b"k" * 32, moment, 2, 1),
        (b"k" * 32, moment, 1, 3),
    ]
    inputs = [share_input(*one) for one in (base, *others)]
    assert len(set(inputs)) == len(inputs)
    assert len({len(one) for one in inputs}) == 1
