"""What one client of a round receives and sends if nobody drops out, for whoever plans or simulates rounds.

The messages are as long as those of a real round. Keys, shares, signatures and the vector in them are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from . import messages
from .codec import Codec
from .identity import SIGNATURE_BYTES
from .keys import SEALED_BYTES
from .names import RECORD, body_record, with_vector
from .options import SecAggOptions
from .packing import packed_size
from .settings import RoundSettings
from .shamir import SHARE_BYTES
from .wire import HASH_BYTES


@dataclass(frozen=True)
class RoundTrip:
    """The contents of a request to a client and of its reply."""

    request: RecordDict
    reply: RecordDict


def round_trips(
    options: SecAggOptions, codec: Codec, broadcast: RecordDict, n: int
) -> list[RoundTrip]:
    """Return the round trips between `SecAggGrid` and one of `n` clients that get this broadcast.

    Raise `SettingsError` if there can be no such round. With groups, the server also sends the keys of clients in other
    groups; they are left out here.
    """
    vector = codec.describe(broadcast, options.sizes(n))
    settings = options.settings(1, 1, range(n), vector, bytes(HASH_BYTES))
    signed = [_sign(settings)] if settings.consistency else []
    whole = _mask(settings, codec.strip(broadcast))
    return [_advertise(settings), _share(settings), whole, *signed, _unmask(settings)]


def _advertise(settings: RoundSettings) -> RoundTrip:
    reply = messages.advertise_reply(settings, bytes(messages.ADVERT_BYTES))
    return _round_trip(settings.encoded, reply)


def _share(settings: RoundSettings) -> RoundTrip:
    adverts, sealed = _of_peers(settings, messages.ADVERT_BYTES), _of_peers(settings, SEALED_BYTES)
    request = messages.share_request(settings, range(settings.n), adverts)
    return _round_trip(request, messages.share_reply(settings, bytes(HASH_BYTES), sealed))


def _mask(settings: RoundSettings, broadcast: RecordDict) -> RoundTrip:
    sealed = _of_peers(settings, SEALED_BYTES)
    request = body_record(messages.mask_request(settings, range(settings.n), sealed))
    packed = bytes(packed_size(settings.dim, settings.bits))
    reply = with_vector(ConfigRecord(), messages.mask_reply(settings, packed))
    return RoundTrip(RecordDict({**broadcast, RECORD: request}), reply)


def _sign(settings: RoundSettings) -> RoundTrip:
    request = messages.sign_request(settings, range(settings.n))
    return _round_trip(request, messages.sign_reply(settings, bytes(SIGNATURE_BYTES)))


def _unmask(settings: RoundSettings) -> RoundTrip:
    signers = range(settings.quorum if settings.consistency else 0)
    signatures = dict.fromkeys(signers, bytes(SIGNATURE_BYTES))
    request = messages.unmask_request(settings, range(settings.n), signatures)
    shares = {0: bytes(SHARE_BYTES), **_of_peers(settings, SHARE_BYTES)}
    return _round_trip(request, messages.unmask_reply(settings, shares))


def _of_peers(settings: RoundSettings, width: int) -> dict[int, bytes]:
    """Return an item of this many bytes for every peer of client 0."""
    return dict.fromkeys(range(1, settings.degree + 1), bytes(width))


def _round_trip(request: bytes, reply: bytes) -> RoundTrip:
    asked, answered = body_record(request), body_record(reply)
    return RoundTrip(RecordDict({RECORD: asked}), RecordDict({RECORD: answered}))
