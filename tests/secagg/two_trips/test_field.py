"""Arithmetic modulo q, compared with Python's whole numbers where it could overflow."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest

from fedsketch.secagg.two_trips.field import (
    FEWEST_BITS,
    MOST_BITS,
    inverses,
    power,
    prime_below,
    product,
)

BITS = range(FEWEST_BITS, MOST_BITS + 1)


def _sieve(below: int) -> list[int]:
    whole = np.ones(below, np.bool_)
    whole[:2] = False
    for i in range(2, int(below**0.5) + 1):
        whole[i * i :: i] = False
    return [int(one) for one in np.flatnonzero(whole)]


PRIMES = _sieve(1 << 16)  # up to the root of the largest q


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in takewhile(lambda d: d * d <= number, PRIMES))


@pytest.mark.parametrize("bits", BITS)
def test_the_modulus_is_the_largest_prime_below(bits: int) -> None:
    q = prime_below(bits)
    assert q < 1 << bits
    assert _is_prime(q)
    assert not any(_is_prime(one) for one in range(q + 1, 1 << bits))


def test_the_moduli_that_pages_name() -> None:
    assert [prime_below(bits) for bits in (16, 20, 32)] == [65521, 1048573, 2**32 - 5]


def _exact(a: np.ndarray, b: np.ndarray, q: int) -> list[list[int]]:
    columns = b.T.tolist()
    return [
        [sum(x * y for x, y in zip(row, one, strict=True)) % q for one in columns]
        for row in a.tolist()
    ]


@pytest.mark.parametrize("bits", BITS)
def test_products_are_exact_with_the_largest_entries(bits: int) -> None:
    q = prime_below(bits)
    a, b = np.full((2, 2000), q - 1, np.uint64), np.full((2000, 3), q - 1, np.uint64)
    assert product(a, b, q).tolist() == _exact(a, b, q) == [[2000 % q] * 3] * 2


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("inner", [1, 31, 32, 33, 2000])
def test_products_are_exact_with_random_entries(bits: int, inner: int) -> None:
    q = prime_below(bits)
    rng = np.random.default_rng(bits * 2000 + inner)
    a, b = (rng.integers(0, q, shape, np.uint64) for shape in ((3, inner), (inner, 4)))
    assert product(a, b, q).tolist() == _exact(a, b, q)


@pytest.mark.parametrize("bits", BITS)
def test_inverses(bits: int) -> None:
    q = prime_below(bits)
    found = inverses(3000, q)
    assert found[0] == 0
    assert all(int(inverse) * i % q == 1 for i, inverse in enumerate(found[1:].tolist(), 1))


@pytest.mark.parametrize("bits", BITS)
def test_powers(bits: int) -> None:
    q = prime_below(bits)
    base = np.array([0, 1, 2, q - 2, q - 1], np.uint64)
    for exponent in (0, 1, 2, 77, q - 2, q - 1):
        assert power(base, exponent, q).tolist() == [pow(int(b), exponent, q) for b in base]
