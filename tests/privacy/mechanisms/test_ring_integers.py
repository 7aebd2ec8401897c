"""Sums modulo any number that secure aggregation uses are exact: a power of two, or an odd number below it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsketch.errors import UnsoundMechanismError
from fedsketch.privacy.mechanisms.mechanism import RingShape
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.privacy.mechanisms.ring_integers import (
    into_ring,
    is_modulus,
    reduced,
    ring_sum,
    unreduced_sum,
)
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing, required_half_ring

PRIMES = {16: 65521, 20: 1048573, 31: 2**31 - 1, 32: 2**32 - 5}
MODULI = [*PRIMES.values(), 2**16, 2**20, 2**32, 2**40, 2**64]


def _centred(number: int, modulus: int) -> int:
    """By Python's integers: the residue that is closest to 0, of two the negative one."""
    return (number + modulus // 2) % modulus - modulus // 2


def _ring(bits: int, *, prime: bool, z: float = 3.0, **options: float) -> SkellamRing:
    return choose_ring(
        dim=64,
        clients=4,
        clip=1.0,
        noise=lambda l2, l1: (z * l2) ** 2,
        bits=bits,
        prime=PRIMES[bits] if prime else 0,
        **options,  # type: ignore[arg-type]
    )


@settings(max_examples=100, deadline=None)
@given(
    modulus=st.sampled_from(MODULI),
    uploads=st.lists(
        st.lists(st.integers(-(2**62), 2**62), min_size=3, max_size=3), min_size=1, max_size=40
    ),
)
def test_sums_are_those_of_whole_numbers(modulus: int, uploads: list[list[int]]) -> None:
    sent = [into_ring(np.array(upload), modulus) for upload in uploads]
    assert all(0 <= number < modulus for one in sent for number in one.tolist())
    expected = [_centred(sum(column), modulus) for column in zip(*uploads, strict=True)]
    assert ring_sum(sent, modulus).tolist() == [float(number) for number in expected]
    # A part may be added up first, reduced or not.
    parts = [unreduced_sum(sent[:2]), reduced(unreduced_sum(sent[2:] or [sent[0] * 0]), modulus)]
    assert ring_sum(parts, modulus).tolist() == [float(number) for number in expected]


@pytest.mark.parametrize("modulus", [*PRIMES.values(), 2**32])
def test_a_hundred_thousand_of_the_largest_numbers_do_not_overflow(modulus: int) -> None:
    half = unreduced_sum([np.full(2, modulus - 1, np.uint64)] * 50_000)
    assert ring_sum([half, half], modulus).tolist() == [float(_centred(-100_000, modulus))] * 2


@pytest.mark.parametrize("modulus", MODULI)
def test_the_ends_of_the_ring_come_back(modulus: int) -> None:
    top = (modulus - 1) // 2
    ends = [0, 1, -1, top, -(modulus // 2)]
    assert ring_sum([into_ring(np.array(ends), modulus)], modulus).tolist() == [*map(float, ends)]


@pytest.mark.parametrize("bits", [16, 20, 32])
def test_a_prime_changes_the_encoding_and_not_the_sum(bits: int) -> None:
    """With the same randomness the same integers leave, as other residues."""
    prime = _ring(bits, prime=True)
    other = replace(prime, prime=0)
    rows = np.random.default_rng(1).normal(size=(4, 1, 64)) / 8
    sent = {
        one.prime: [one.encode(row, Stream(derived_key(i)), 1) for i, row in enumerate(rows)]
        for one in (prime, other)
    }
    modulus = PRIMES[bits]
    assert prime.ring == RingShape(64, bits, modulus)
    assert max(int(one.max()) for one in sent[modulus]) < modulus
    assert not np.array_equal(sent[modulus], sent[0])
    np.testing.assert_array_equal(prime.total(sent[modulus], 1), other.total(sent[0], 1))


def test_server_noise_is_reduced_by_the_prime() -> None:
    ring = _ring(16, prime=True)
    noise = ring.noise_alone(5000, 1e9, Stream(derived_key(1)))
    assert 65521 - 200 < int(noise.max()) < 65521


def test_noise_inside_of_training_is_summed_modulo_a_prime() -> None:
    made = NoisyTraining(
        **{"unit": "example", "rows": 5, "clip": 1.0, "local_multiplier": 1.0, "rate": 0.5},
        **{"steps": 2, "batch": 2.0, "lr": 0.1, "dim": 30, "bits": 16, "clients": 3},
        prime=65521,
    )  # type: ignore[arg-type]
    sent = [made.protect_nothing(Stream(derived_key(i))).vector for i in range(3)]
    plain = replace(made, bits=40, prime=0)
    whole = [plain.protect_nothing(Stream(derived_key(i))).vector for i in range(3)]
    assert all(int(vector.max()) < 65521 for vector in sent)
    np.testing.assert_allclose(made.total(sent, 1), plain.total(whole, 1), atol=1.5 / made.scale)
    assert made.scale * made.limit * 3 <= 65521 // 2 - 3 + 1e-6


@pytest.mark.parametrize("prime", [False, True])
def test_the_bound_on_wraparounds_holds_and_speaks_of_this_modulus(prime: bool) -> None:
    """Half of all sums may wrap around here. The bound adds up 64 tails, each twice as large as a Gaussian's or more:
    about one sum in twenty does."""
    plan = _ring(16, prime=prime, z=40.0, wraparound_probability=0.5)
    half = plan.ring.modulus // 2
    needed = required_half_ring(
        dim=64, clients=4, rows=1, scaled_clip=plan.scale, local_variance=plan.local_variance,
        rotate=True, probability=0.5,
    )  # fmt: skip
    assert half * (1 - 1e-3) < needed <= half
    wide, wrapped, sums = replace(plan, bits=64, prime=0), 0, 600
    row = np.full((1, 64), 1 / 8)
    for seed in range(sums):
        streams = [[Stream(derived_key(seed, i)) for i in range(4)] for _ in range(2)]
        small, true = (
            ring_sum([one.encode(row, stream, 1) for stream in own], one.ring.modulus)
            for one, own in zip((plan, wide), streams, strict=True)
        )
        wrapped += not np.array_equal(small, true)
    assert 0.01 < wrapped / sums < 0.5


def test_a_prime_leaves_a_little_less_room() -> None:
    assert _ring(16, prime=True).scale == pytest.approx(_ring(16, prime=False).scale, rel=3e-4)
    assert _ring(16, prime=True).scale < _ring(16, prime=False).scale


def test_only_a_prime_is_in_the_record() -> None:
    """So records without one are those of versions that knew none."""
    assert "prime" not in _ring(16, prime=False).to_record()
    made = _ring(16, prime=True)
    assert made.to_record()["prime"] == 65521
    assert mechanism_from_record(made.to_record()) == made


@pytest.mark.parametrize("prime", [1, 2, 65520, 65521 * 2 + 1, 2**32 + 1, 2**40 - 87])
def test_what_is_no_modulus_of_the_ring_is_refused(prime: int) -> None:
    record = {**_ring(16, prime=True).to_record(), "prime": prime}
    with pytest.raises(UnsoundMechanismError, match="invalid 'prime'"):
        mechanism_from_record(record)


def test_odd_moduli_end_at_32_bits() -> None:
    """Of larger ones 2^32 uploads could overflow a word."""
    assert is_modulus(32, 2**32 - 5)
    assert not is_modulus(33, 2**33 - 9)


@pytest.mark.parametrize("prime", [False, True])
def test_a_round_with_another_modulus_is_refused(prime: bool) -> None:
    made = _ring(16, prime=prime)
    made.check_round(made.ring, 4, 0, 0)
    other = 2**16 if prime else 65521
    with pytest.raises(UnsoundMechanismError, match=f"but the round has {other}"):
        made.check_round(RingShape(64, 16, other), 4, 0, 0)
