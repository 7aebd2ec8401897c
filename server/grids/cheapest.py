"""Which protocol sends fewer bytes, by closed forms of what a client sends and receives beside the broadcast."""

from __future__ import annotations

from fedsketch.secagg import ProtocolName, SecAggOptions, Sizes

_EPOCH = 32  # rounds for which the keys of an epoch serve
_MOST_BITS, _FEWEST_BITS = 32, 16  # of a sum in two trips
_LARGEST_COMPLETE = 1024  # clients who can all exchange masks


def cheapest(
    options: SecAggOptions, sizes: Sizes, dim: int, bits_pairwise: int, bits_two_trips: int
) -> ProtocolName:
    """Return the protocol that sends fewer bytes per client and round, of those that can sum such vectors. Pairwise
    masks if neither can, because their conditions are the weaker ones."""
    lost = options.losses
    losses = int(lost * sizes.fewest) if isinstance(lost, float) else lost
    two_trips = _two_trips(sizes, losses, dim, bits_two_trips)
    if two_trips is None:
        return ProtocolName.PAIRWISE
    if sizes.least < sizes.needed or sizes.most > _LARGEST_COMPLETE:
        return ProtocolName.TWO_TRIPS
    shorter = two_trips < _pairwise(sizes.most, dim, bits_pairwise)
    return ProtocolName.TWO_TRIPS if shorter else ProtocolName.PAIRWISE


def _pairwise(n: int, dim: int, bits: int) -> float:
    """Return the bytes of a complete graph, both ways: settings, keys, shares, signatures and the vector."""
    return 385 + 393.3 * n + dim * bits / 8


def _two_trips(sizes: Sizes, losses: int, dim: int, bits: int) -> float | None:
    """Return the bytes of a sum in two trips, both ways, with an epoch's keys; None if its conditions fail."""
    publics, honest = sizes.drops + losses, sizes.fewest - sizes.colluders
    secrets = (sizes.fewest - 2 * sizes.colluders + 1) // 2 - publics
    possible = secrets >= 1 and honest >= 4 * sizes.drops
    points = sizes.most + publics + secrets
    if not possible or not _FEWEST_BITS <= bits <= _MOST_BITS or points >= 1 << bits:
        return None
    polynomials = -(-dim // secrets)
    vectors = (dim + (publics + 1) * polynomials) * bits / 8
    n = sizes.most
    return vectors + 108 + n / 8 + (109 + 104 * n) / _EPOCH
