"""Takes the server's parcel out of a train message before anything else sees the message, and answers itself if it is of no use.

This runs around secure aggregation, whose hash covers what all devices are sent alike; a parcel is each device's own. The answer says
no more than which public state this device lacks, and nothing is trained, booked or masked before the parcel is in place.
"""

from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedsketch.client.guard.guard import device_folder
from fedsketch.replay.records import PARCEL, PARCEL_ARRAYS, STALE
from fedsketch.secagg import Refusal


def take_delivery(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """A Flower mod."""
    if PARCEL not in message.content.config_records:
        return call_next(message, context)
    from fedsketch.replay.replica import receive

    try:
        problem = receive(message.content, device_folder(context))
    except Refusal:
        problem = (
            None  # a device without a folder: secure aggregation will refuse, in its own words
        )
    if problem is not None:
        stale = RecordDict({PARCEL: ConfigRecord({STALE: problem})})
        return Message(stale, reply_to=message)
    del message.content[PARCEL], message.content[PARCEL_ARRAYS]
    return call_next(message, context)
