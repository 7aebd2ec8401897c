"""Takes the server's parcel out of a train message before anything else sees the message, and answers itself if it is of no use.

This runs around secure aggregation, whose hash covers what all devices are sent alike; a parcel is each device's own. The answer says
no more than which public state this device lacks, and nothing is trained, booked or masked before the parcel is in place.
"""

from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedsketch.replay.records import PARCEL, PARCEL_ARRAYS, STALE

Handler = Callable[[Message, Context], Message]
Receive = Callable[[RecordDict, Context], str | None]


def delivery_mod(receive: Receive) -> Callable[[Message, Context, Handler], Message]:
    """A Flower mod. `receive` takes the parcel in a message's content in, or says why it is of no use."""

    def take_delivery(message: Message, context: Context, call_next: Handler) -> Message:
        if PARCEL not in message.content.config_records:
            return call_next(message, context)
        problem = receive(message.content, context)
        if problem is not None:
            stale = RecordDict({PARCEL: ConfigRecord({STALE: problem})})
            return Message(stale, reply_to=message)
        del message.content[PARCEL], message.content[PARCEL_ARRAYS]
        return call_next(message, context)

    return take_delivery
