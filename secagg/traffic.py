"""What one client of a round receives and sends if nobody drops out, for whoever plans or simulates rounds, and which
protocol sends less."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flwr.app import RecordDict

from .codec import Codec, VectorFormat
from .errors import SettingsError
from .names import ProtocolName, vector_in
from .options import SecAggOptions
from .pairwise import traffic as pairwise
from .pairwise.settings import PairwiseSettings
from .round_trip import RoundTrip
from .settings import NONCE_BYTES
from .two_trips import traffic as two_trips
from .two_trips.sessions import terms_of
from .wire import HASH_BYTES


@dataclass(frozen=True)
class Traffic:
    """The round trips of most rounds, and those of the first of every `period` rounds."""

    usual: list[RoundTrip]
    first: list[RoundTrip]
    period: int


def planned_traffic(options: SecAggOptions, codec: Codec, broadcast: RecordDict, n: int) -> Traffic:
    """Return the round trips between `SecAggGrid` and one of `n` clients that get this broadcast.

    Raise `SettingsError` if there can be no such round.
    """
    vector = codec.describe(broadcast, options.sizes(n))
    return _traffic(options, vector, codec.strip(broadcast), n)


def protocol_for(options: SecAggOptions, vector: VectorFormat, n: int) -> ProtocolName:
    """Return the protocol in which n clients send such vectors: that of the vector, or of the options, or the one that
    sends fewer bytes."""
    return vector.protocol or options.protocol or cheapest(options, [vector], n)


def cheapest(options: SecAggOptions, vectors: list[VectorFormat], n: int) -> ProtocolName:
    """Return the protocol in which n clients send and receive the fewest bytes, of those that are possible. The vectors
    are what the protocols sum; one that names no protocol is for each."""
    best: tuple[float, ProtocolName] | None = None
    problems = []
    for vector in vectors:
        for name in [vector.protocol] if vector.protocol else list(ProtocolName):
            try:
                cost = protocol_bytes(options, replace(vector, protocol=name), n)
            except SettingsError as error:
                problems.append(error)
            else:
                best = min(best or (cost, name), (cost, name))
    if best is None:
        raise problems[0]
    return best[1]


def is_possible(options: SecAggOptions, vector: VectorFormat, n: int) -> bool:
    """Return whether n clients can send such vectors in the protocol of the vector."""
    try:
        protocol_bytes(options, vector, n)
    except SettingsError:
        return False
    return True


def protocol_bytes(options: SecAggOptions, vector: VectorFormat, n: int) -> float:
    """Return what the protocol and the vector cost a client in a round, up and down, on average. Raise `SettingsError`
    if there can be no such round."""
    found = _traffic(options, vector, RecordDict(), n)
    usual, first = _bytes(found.usual), _bytes(found.first)
    return usual + (first - usual) / found.period


def _traffic(
    options: SecAggOptions, vector: VectorFormat, broadcast: RecordDict, n: int
) -> Traffic:
    if protocol_for(options, vector, n) is ProtocolName.PAIRWISE:
        settings = PairwiseSettings.proposed(
            options, 1, 1, range(n), vector, bytes(HASH_BYTES), bytes(NONCE_BYTES)
        )
        usual = pairwise.round_trips(settings, broadcast)
        return Traffic(usual, usual, 1)
    terms = terms_of(options, vector, n)
    group = two_trips.settings_like(options.for_vector(vector).sizes(n).most, terms, options.closed)
    first = two_trips.first_round_trips(group, broadcast)
    return Traffic(two_trips.round_trips(group, broadcast), first, options.epoch_rounds)


def _bytes(several: list[RoundTrip]) -> int:
    """Return the bytes of the protocol and of the vector."""
    contents = [content for trip in several for content in (trip.request, trip.reply)]
    return sum(len(vector_in(content) or b"") for content in contents)
