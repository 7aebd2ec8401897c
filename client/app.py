"""The ClientApp: what a device answers. Protocol messages must stay cheap, so torch is imported only to train.

Train replies leave as masked vectors; a server that asks without secure aggregation gets what the guard allows.
"""

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedsketch.client.guard.guard import guard_of
from fedsketch.replay.mod import take_delivery
from fedsketch.secagg import client_app
from fedsketch.strategies.shared.codec import RingCodec

app = client_app(RingCodec(), guard_of, outer=[take_delivery])


@app.query("introduce")
def introduce(message: Message, context: Context) -> Message:
    """Which client this node is: its part of a shared data set in simulations, else the node itself."""
    return Message(
        RecordDict({"self": ConfigRecord({"client": client_id(context)})}), reply_to=message
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    """The client's half of a round: local step, clip, noise."""
    from fedsketch.client.training import take_part

    reply = take_part(message.content, client_id(context), context.state)
    return Message(reply, reply_to=message)


def client_id(context: Context) -> int:
    return int(context.node_config.get("partition-id", context.node_id))
