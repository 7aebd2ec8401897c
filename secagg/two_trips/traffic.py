"""What one client of a round in two trips receives and sends if nobody drops out.

The messages are as long as those of a real round. Keys, signatures, sums and the vector in them are zeros.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from ..names import RECORD, body_record, with_vector
from ..round_trip import RoundTrip, round_trip
from ..settings import NONCE_BYTES
from ..wire import HASH_BYTES
from . import messages
from .keys import ADVERT_BYTES
from .messages import SharingRequest
from .settings import Cohort, Terms, TwoTripsSettings


def settings_like(n: int, terms: Terms, closed: bool) -> TwoTripsSettings:
    """Return the settings of a round of n clients in a group. Raise `SettingsError` if there can be none."""
    cohort = Cohort(1, 1, closed, tuple(range(n)))
    return TwoTripsSettings.of(cohort, terms, 1, bytes(NONCE_BYTES), bytes(HASH_BYTES))


def round_trips(settings: TwoTripsSettings, broadcast: RecordDict) -> list[RoundTrip]:
    """Return the two round trips of a round in which the devices get this broadcast. If the epoch is closed they know
    each other; if not, a device may meet all its peers for the first time."""
    named = SharingRequest(bytes(HASH_BYTES), 1, bytes(NONCE_BYTES))
    request = named if settings.closed else replace(_meeting(settings), terms=b"")
    return [_mask(settings, request, broadcast), _answer(settings)]


def first_round_trips(settings: TwoTripsSettings, broadcast: RecordDict) -> list[RoundTrip]:
    """Return the round trips of the first round of an epoch, in which the devices meet each other."""
    reply = messages.hello_reply(bytes(ADVERT_BYTES))
    hello = round_trip(messages.hello_request(1, 1), reply)
    return [hello, _mask(settings, _meeting(settings), broadcast), _answer(settings)]


def _meeting(settings: TwoTripsSettings) -> SharingRequest:
    """Return a request that brings everything along."""
    adverts = dict.fromkeys(range(1, settings.n), bytes(ADVERT_BYTES))
    parts = settings.announced.encoded, settings.terms.encoded, adverts
    return SharingRequest(bytes(HASH_BYTES), 1, bytes(NONCE_BYTES), *parts)


def _mask(settings: TwoTripsSettings, request: SharingRequest, broadcast: RecordDict) -> RoundTrip:
    shape = settings.shape
    masked = np.zeros(shape.dim, dtype=np.uint64)
    published = np.zeros((shape.publics, shape.polynomials), dtype=np.uint64)
    reply = with_vector(ConfigRecord(), messages.sharing_reply(settings, masked, published))
    return RoundTrip(RecordDict({**broadcast, RECORD: body_record(request.encode())}), reply)


def _answer(settings: TwoTripsSettings) -> RoundTrip:
    request = messages.answer_request(settings, range(settings.n))
    answer = np.zeros(settings.shape.polynomials, dtype=np.uint64)
    return round_trip(request, messages.answer_reply(settings, answer))
