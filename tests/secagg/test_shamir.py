"""Shamir's sharing: any threshold of shares gives the secret back, and fewer give nothing."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsketch.secagg.errors import Malformed
from fedsketch.secagg.pairwise import shamir

EXTREMES = [0, 1, 2**32 - 1, 2**32, 2**256 - 2**32, 2**256 - 1, 2**256, shamir.PRIME - 1]
ELEMENTS = st.one_of(st.sampled_from(EXTREMES), st.integers(0, shamir.PRIME - 1))
POINTS = st.one_of(
    st.integers(1, 40), st.integers(1, 1024), st.integers(1, shamir.LARGEST_POINT),
    st.sampled_from([1023, 1024, shamir.LARGEST_POINT]),
)  # fmt: skip


def plainly(coefficients: Sequence[int], point: int) -> int:
    """Horner's rule in Python's integers, reduced at every step."""
    value = 0
    for coefficient in coefficients:
        value = (value * point + coefficient) % shamir.PRIME
    return value


@settings(max_examples=300, deadline=None)
@given(
    coefficients=st.lists(ELEMENTS, min_size=1, max_size=60),
    points=st.lists(POINTS, min_size=1, max_size=60, unique=True),
)
def test_all_points_at_once_are_exact(coefficients: list[int], points: list[int]) -> None:
    expected = [plainly(coefficients, point) for point in points]
    assert shamir.evaluate(coefficients, points) == expected


@pytest.mark.parametrize("element", EXTREMES)
@pytest.mark.parametrize("largest", [1, 3, 15, 31, 127, 1023, 1024, shamir.LARGEST_POINT])
def test_carries_never_overflow_in_long_polynomials(element: int, largest: int) -> None:
    """All coefficients alike, at the largest points of every length of deferred carries."""
    points = list(range(max(1, largest - 3), largest + 1))
    expected = [plainly([element] * 700, point) for point in points]
    assert shamir.evaluate([element] * 700, points) == expected


def test_a_thousand_shares_are_those_of_a_polynomial_from_the_operating_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[int] = []

    def draw(below: int) -> int:
        assert below == shamir.PRIME
        drawn.append(secrets.SystemRandom().randrange(below))
        return drawn[-1]

    monkeypatch.setattr(shamir.secrets, "randbelow", draw)
    secret, points = os.urandom(32), range(1, 1001)
    shares = shamir.split(secret, 551, points)
    assert len(drawn) == 550
    coefficients = [*drawn, int.from_bytes(secret, "big")]
    assert shares == [plainly(coefficients, point).to_bytes(33, "big") for point in points]


@settings(max_examples=60, deadline=None)
@given(
    secret=st.binary(min_size=32, max_size=32),
    n=st.integers(1, 40),
    data=st.data(),
)
def test_any_threshold_of_shares_joins(secret: bytes, n: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, n))
    points = data.draw(st.lists(st.integers(1, 10**6), min_size=n, max_size=n, unique=True))
    shares = dict(zip(points, shamir.split(secret, threshold, points), strict=True))
    chosen = data.draw(st.permutations(points))[:threshold]
    assert shamir.join([shares[p] for p in chosen], shamir.weights(chosen)) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, b"\x00" * 31 + b"\x01"])
def test_extreme_secrets_survive(secret: bytes) -> None:
    shares = shamir.split(secret, 3, [1, 2, 3])
    assert shamir.join(shares, shamir.weights([1, 2, 3])) == secret


def test_one_share_too_few_does_not_give_the_secret() -> None:
    secret = os.urandom(32)
    shares = shamir.split(secret, 5, range(1, 10))
    points = [1, 2, 3, 4]
    try:
        joined = shamir.join(shares[:4], shamir.weights(points))
    except Malformed:
        return
    assert joined != secret


def test_shares_below_the_threshold_fit_every_secret() -> None:
    """With t - 1 shares fixed, each candidate secret is hit by exactly one completing share."""
    shares = shamir.split(b"\x05" * 32, 3, [1, 2, 3])
    candidate = random.Random(1).randbytes(32)
    one, two, three = shamir.weights([1, 2, 3])
    known = int.from_bytes(shares[0], "big") * one + int.from_bytes(shares[1], "big") * two
    missing = (int.from_bytes(candidate, "big") - known) * pow(three, -1, shamir.PRIME)
    share = (missing % shamir.PRIME).to_bytes(33, "big")
    assert shamir.join([shares[0], shares[1], share], [one, two, three]) == candidate


def test_the_modulus_is_prime() -> None:
    """Miller-Rabin with 40 bases: a composite passes with probability at most 4^-40."""
    p, odd, twos = shamir.PRIME, shamir.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    rng = random.Random(0)
    for _ in range(40):
        x = pow(rng.randrange(2, p - 1), odd, p)
        chain = [pow(x, 2**i, p) for i in range(twos)]
        assert x == 1 or p - 1 in chain


@pytest.mark.parametrize(
    ("secret", "threshold", "points"),
    [(b"short", 1, [1]), (bytes(32), 0, [1]), (bytes(32), 3, [1, 2]), (bytes(32), 1, [0, 1]),
     (bytes(32), 2, [1, 1]), (bytes(32), 1, [shamir.LARGEST_POINT + 1])],
)  # fmt: skip
def test_bad_arguments_are_refused(secret: bytes, threshold: int, points: list[int]) -> None:
    with pytest.raises(ValueError, match=r"secret|threshold|points"):
        shamir.split(secret, threshold, points)
