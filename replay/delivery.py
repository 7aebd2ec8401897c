"""What a device does with the server's parcel of a train message, before it trains.

A parcel is each device's own, so it travels beside what all devices of a round are sent alike, and is not under the hash that they
share. The answer to one that is of no use says which public state this device lacks, and nothing else.
"""

from flwr.app import ConfigRecord, RecordDict

from fedsketch.replay.records import PARCEL, STALE


def asks_for_the_whole(problem: str) -> RecordDict:
    """The answer of a device whose parcel does not bring it up to date."""
    return RecordDict({PARCEL: ConfigRecord({STALE: problem})})
