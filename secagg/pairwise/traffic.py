"""What one client of a round with pairwise masks receives and sends if nobody drops out.

The messages are as long as those of a real round. Keys, shares, signatures and the vector in them are zeros.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from ..identity import SIGNATURE_BYTES
from ..names import RECORD, body_record, with_vector
from ..packing import packed_size
from ..round_trip import RoundTrip, round_trip
from ..wire import HASH_BYTES
from . import messages
from .keys import SEALED_BYTES
from .settings import PairwiseSettings
from .shamir import SHARE_BYTES


def round_trips(settings: PairwiseSettings, broadcast: RecordDict) -> list[RoundTrip]:
    """Return the round trips of a round in which the devices get this broadcast. With groups, the server also sends the
    keys of clients in other groups; they are left out here."""
    signed = [_sign(settings)] if settings.consistency else []
    whole = _mask(settings, broadcast)
    return [_advertise(settings), _share(settings), whole, *signed, _unmask(settings)]


def _advertise(settings: PairwiseSettings) -> RoundTrip:
    reply = messages.advertise_reply(settings, bytes(messages.ADVERT_BYTES))
    return round_trip(settings.encoded, reply)


def _share(settings: PairwiseSettings) -> RoundTrip:
    adverts, sealed = _of_peers(settings, messages.ADVERT_BYTES), _of_peers(settings, SEALED_BYTES)
    request = messages.share_request(settings, range(settings.n), adverts)
    return round_trip(request, messages.share_reply(settings, bytes(HASH_BYTES), sealed))


def _mask(settings: PairwiseSettings, broadcast: RecordDict) -> RoundTrip:
    sealed = _of_peers(settings, SEALED_BYTES)
    request = body_record(messages.mask_request(settings, range(settings.n), sealed))
    packed = bytes(packed_size(settings.dim, settings.bits))
    reply = with_vector(ConfigRecord(), messages.mask_reply(settings, packed))
    return RoundTrip(RecordDict({**broadcast, RECORD: request}), reply)


def _sign(settings: PairwiseSettings) -> RoundTrip:
    request = messages.sign_request(settings, range(settings.n))
    return round_trip(request, messages.sign_reply(settings, bytes(SIGNATURE_BYTES)))


def _unmask(settings: PairwiseSettings) -> RoundTrip:
    signers = range(settings.quorum if settings.consistency else 0)
    signatures = dict.fromkeys(signers, bytes(SIGNATURE_BYTES))
    request = messages.unmask_request(settings, range(settings.n), signatures)
    shares = {0: bytes(SHARE_BYTES), **_of_peers(settings, SHARE_BYTES)}
    return round_trip(request, messages.unmask_reply(settings, shares))


def _of_peers(settings: PairwiseSettings, width: int) -> dict[int, bytes]:
    """Return an item of this many bytes for every peer of client 0."""
    return dict.fromkeys(range(1, settings.degree + 1), bytes(width))
