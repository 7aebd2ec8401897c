"""`smallest_ring`: the ring serves, one that is a bit smaller would cost more than 1 % of noise."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

import pytest

from fedsketch.errors import RingTooSmallError
from fedsketch.privacy.accounting.calibration import calibrate_skellam
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    NoSampling,
    Release,
    Skellam,
    Unit,
)
from fedsketch.privacy.mechanisms.ring_choice import NoiseRule, choose_ring
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.privacy.mechanisms.smallest_ring import LARGEST_COST, error_std, smallest_ring
from fedsketch.secagg import ProtocolName, modulus_of, ring_sizes

CASES = {
    "a sketch": {"dim": 64, "clients": 100},
    "a long vector": {"dim": 25_450, "clients": 100},
    "a very long vector": {"dim": 1_000_000, "clients": 1000},
    "many clients": {"dim": 1386, "clients": 10_000},
    "one number": {"dim": 1, "clients": 10},
}


@lru_cache
def _noise(l2: float, l1: float) -> float:
    """The accountant's, for 20 rounds of epsilon 2."""

    def template(law: Skellam) -> Release:
        return Release(law, NoSampling(), Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.SERVER)

    return calibrate_skellam(
        template, l2_sensitivity=l2, l1_sensitivity=l1, rounds=20, epsilon=2.0, delta=1e-5
    )


class _Chooser:
    """Makes rings of one kind of round, and counts how often with the accountant's noise."""

    def __init__(self, protocol: ProtocolName, noise: NoiseRule = _noise, **kind: Any) -> None:
        self.protocol, self.noise, self.kind = protocol, noise, {"clip": 0.3, **kind}
        self.exact = 0

    def __call__(self, bits: int, noise: NoiseRule) -> SkellamRing:
        self.exact += noise is self.noise
        modulus = modulus_of(self.protocol, bits)
        return choose_ring(bits=bits, prime=modulus if modulus % 2 else 0, noise=noise, **self.kind)

    @property
    def large(self) -> SkellamRing:
        return choose_ring(bits=64, noise=self.noise, **self.kind)

    def smallest(self, **options: Any) -> int:
        return smallest_ring(ring_sizes(self.protocol), self, self.noise, self.large, **options)

    def cost(self, bits: int) -> float:
        return error_std(self(bits, self.noise)) / error_std(self.large)


@pytest.mark.parametrize("protocol", ProtocolName)
@pytest.mark.parametrize("kind", CASES.values(), ids=CASES)
def test_it_is_the_smallest_that_costs_less_than_one_percent(
    protocol: ProtocolName, kind: dict[str, int]
) -> None:
    chooser = _Chooser(protocol, **kind)
    bits = chooser.smallest()
    assert chooser.exact == 1
    assert chooser.cost(bits) <= LARGEST_COST
    if bits > 16:
        with suppress(RingTooSmallError):  # it does not hold the sum at all
            assert chooser.cost(bits - 1) > LARGEST_COST


def test_the_sizes_of_some_rings() -> None:
    found = [_Chooser(ProtocolName.PAIRWISE, **kind).smallest() for kind in CASES.values()]
    assert found == [16, 17, 20, 20, 16]


def test_rounding_and_noise_are_both_in_the_cost() -> None:
    """Without noise there is only rounding, and no ring with a smaller scale serves."""
    chooser = _Chooser(ProtocolName.PAIRWISE, lambda l2, l1: 0.0, dim=64, clients=100)
    bits = chooser.smallest()
    assert bits == 20
    assert chooser.cost(bits - 1) > LARGEST_COST


def test_a_fine_ring_does_not_rotate_and_has_the_full_scale() -> None:
    chooser = _Chooser(ProtocolName.PAIRWISE, dim=64, clients=1000)
    bits = chooser.smallest(fine=True)
    ring, below = chooser(bits, _noise), chooser(bits - 1, _noise)
    assert not ring.rotate
    assert ring.scale == chooser.large.scale != below.scale


def test_sums_that_a_large_ring_rounds_once_are_rounded_once() -> None:
    """Rows rounded one by one would do with a smaller ring, but are slower."""
    chooser = _Chooser(ProtocolName.TWO_TRIPS, dim=458, clients=60, rows=24, unit=Unit.EXAMPLE)
    bits = chooser.smallest()
    assert chooser(bits, _noise).rounds_once
    assert not chooser(bits - 1, _noise).rounds_once
    assert chooser.cost(bits - 1) < LARGEST_COST


def test_no_ring_of_the_protocol_serves() -> None:
    kind = {"dim": 1_000_000, "clients": 1000, "rows": 1000, "unit": Unit.EXAMPLE}
    with pytest.raises(RingTooSmallError, match="no ring of up to 32 bits holds the sum of 1000"):
        _Chooser(ProtocolName.TWO_TRIPS, **kind).smallest()
    assert _Chooser(ProtocolName.PAIRWISE, **kind).smallest() > 32
