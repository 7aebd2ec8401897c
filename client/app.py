"""The ClientApp: how a device answers messages. Protocol messages must be answered quickly, so torch is imported only
to train.

Replies to train messages leave as masked vectors. A server that asks without secure aggregation gets what the guard
allows.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsketch.client.guard.guard import guard_of
from fedsketch.delivery.records import FROZEN_ARRAYS, PARCEL, PARCEL_ARRAYS, SETTINGS
from fedsketch.secagg import client_app
from fedsketch.strategies.rounds.codec import RingCodec

if TYPE_CHECKING:
    from fedsketch.client.workspace import Workspace


def make_app() -> ClientApp:
    """Make an app with its own workspace."""

    @cache
    def workspace() -> Workspace:
        from fedsketch.client.workspace import Workspace

        return Workspace()

    def prepare(content: RecordDict, parcel: RecordDict, context: Context) -> RecordDict | None:
        return workspace().prepare(content, parcel, context.state, guard_of(context))

    detached = (PARCEL, PARCEL_ARRAYS, FROZEN_ARRAYS, SETTINGS)
    app = client_app(RingCodec(), guard_of, prepare=prepare, detached=detached)

    @app.query("introduce")
    def introduce(message: Message, context: Context) -> Message:
        """Answer which client this node is: its part of a shared data set in simulations, otherwise the node itself."""
        own = ConfigRecord({"client": client_id(context)})
        return Message(RecordDict({"self": own}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Answer a train message: the client's half of a round."""
        reply = workspace().take_part(
            message.content, client_id(context), context.state, guard_of(context)
        )
        return Message(reply, reply_to=message)

    return app


class AppByName(ClientApp):
    """An app that is sent to other processes by its name. Each Ray process has one app, whose workspace serves all its
    clients."""

    def __call__(self, message: Message, context: Context) -> Message:
        return app(message, context)


def client_id(context: Context) -> int:
    return int(context.node_config.get("partition-id", context.node_id))


app = make_app()
by_name = AppByName()
