"""What one client of a round receives and sends if nobody drops out, for whoever plans or simulates rounds."""

from __future__ import annotations

from flwr.app import RecordDict

from .codec import Codec
from .options import SecAggOptions
from .pairwise import trips as pairwise
from .pairwise.settings import PairwiseSettings
from .round_trip import RoundTrip
from .wire import HASH_BYTES


def round_trips(
    options: SecAggOptions, codec: Codec, broadcast: RecordDict, n: int
) -> list[RoundTrip]:
    """Return the round trips between `SecAggGrid` and one of `n` clients that get this broadcast.

    Raise `SettingsError` if there can be no such round.
    """
    vector = codec.describe(broadcast, options.sizes(n))
    settings = PairwiseSettings.proposed(options, 1, 1, range(n), vector, bytes(HASH_BYTES))
    return pairwise.round_trips(settings, codec.strip(broadcast))
