"""The moduli that each protocol sums by, for whoever makes the vectors."""

from __future__ import annotations

from .names import ProtocolName
from .packing import LARGEST_RING, SMALLEST_RING
from .two_trips.field import FEWEST_BITS, MOST_BITS, prime_below


def ring_sizes(protocol: ProtocolName) -> range:
    """Return the sizes of the rings in which the protocol sums, in bits."""
    if protocol is ProtocolName.TWO_TRIPS:
        return range(FEWEST_BITS, MOST_BITS + 1)
    return range(SMALLEST_RING, LARGEST_RING + 1)


def modulus_of(protocol: ProtocolName, bits: int) -> int:
    """Return the number modulo which the protocol sums in a ring of so many bits."""
    return prime_below(bits) if protocol is ProtocolName.TWO_TRIPS else 1 << bits
