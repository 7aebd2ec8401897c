"""Packing keeps every vector of every ring, in no more bytes than the bits need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsketch.secagg.errors import Malformed
from fedsketch.secagg.packing import (
    centred,
    pack,
    packed_size,
    reduce,
    residues,
    ring_dtype,
    unpack,
)
from fedsketch.secagg.two_trips.field import prime_below


@pytest.mark.parametrize("bits", range(16, 65))
@pytest.mark.parametrize("dim", [1, 63, 64, 65, 200])
def test_every_ring_round_trips(bits: int, dim: int) -> None:
    rng = np.random.default_rng(bits * 1000 + dim)
    vector = reduce(
        rng.integers(0, 2**64 - 1, dim, dtype=np.uint64, endpoint=True).astype(ring_dtype(bits)),
        1 << bits,
    )
    vector[0] = (1 << bits) - 1
    data = pack(vector, bits)
    assert len(data) == (dim * bits + 7) // 8
    np.testing.assert_array_equal(unpack(data, dim, bits), vector)


@settings(max_examples=50, deadline=None)
@given(bits=st.integers(16, 64), data=st.data())
def test_packed_bits_are_the_numbers_in_order(bits: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=70))
    packed = pack(np.array(numbers, dtype=ring_dtype(bits)), bits)
    whole = sum(number << (bits * place) for place, number in enumerate(numbers))
    assert int.from_bytes(packed, "little") == whole


def test_wrong_length_and_padding_are_malformed() -> None:
    data = pack(np.arange(5, dtype="<u4"), 17)
    with pytest.raises(Malformed):
        unpack(data[:-1], 5, 17)
    with pytest.raises(Malformed):
        unpack(data + b"\0", 5, 17)
    with pytest.raises(Malformed):
        unpack(data[:-1] + b"\xff", 5, 17)


@pytest.mark.parametrize("bits", [16, 17, 32, 40, 64])
def test_centred_reads_twos_complement(bits: int) -> None:
    half = 1 << (bits - 1)
    values = [0, 1, -1, half - 1, -half]
    ring = np.array([v % (1 << bits) for v in values], dtype=np.uint64).astype(ring_dtype(bits))
    assert centred(ring, 1 << bits).tolist() == values


def test_32_bits_take_4_bytes() -> None:
    assert packed_size(10**6, 32) == 4 * 10**6
    assert packed_size(10**6, 20) == 2_500_000


@pytest.mark.parametrize("bits", [0, 15, 65])
def test_other_rings_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="16 to 64"):
        ring_dtype(bits)


MODULI = [1 << bits for bits in (16, 17, 32, 40, 64)] + [prime_below(b) for b in (16, 17, 31, 32)]


@pytest.mark.parametrize("modulus", MODULI)
def test_residues_are_centred_again(modulus: int) -> None:
    ends = [0, 1, -1, (modulus - 1) // 2, -(modulus // 2)]
    found = residues(np.array(ends), modulus)
    assert found.tolist() == [end % modulus for end in ends]
    assert centred(found, modulus).tolist() == ends


@settings(max_examples=100, deadline=None)
@given(modulus=st.sampled_from(MODULI), data=st.data())
def test_sums_of_residues_are_those_of_the_numbers(modulus: int, data: st.DataObject) -> None:
    """Modulo a power of two also in the smallest type, whose wraparound is harmless."""
    numbers = data.draw(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=50))
    bits = (modulus - 1).bit_length()
    total = np.zeros(1, np.uint64 if modulus % 2 else ring_dtype(bits))
    for number in numbers:
        total += residues(np.array([number]), modulus).astype(total.dtype)
    assert reduce(total, modulus).tolist() == [sum(numbers) % modulus]
    (signed,) = centred(total, modulus).tolist()
    assert signed % modulus == sum(numbers) % modulus
    assert -(modulus // 2) <= signed <= (modulus - 1) // 2
