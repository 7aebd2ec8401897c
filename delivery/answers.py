"""What a device does with the server's parcel in a train message, before it trains.

Each device has its own parcel, so it is sent beside what all devices of a round receive, and is not part of the hash
that they share. A device that cannot use its parcel answers which public state it lacks, and nothing else.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from fedsketch.delivery.records import PARCEL, STALE


def asks_for_the_whole(problem: str) -> RecordDict:
    """Return the answer of a device that its parcel does not bring up to date."""
    return RecordDict({PARCEL: ConfigRecord({STALE: problem})})
