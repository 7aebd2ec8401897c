"""The protocol on a Flower ClientApp.

`client_app` makes a ClientApp whose train handlers never answer in the clear: a mod around them
checks the request, lets the handler train, turns its reply into the masked vector and drops
everything else. The other stages are query handlers of their own, which do not touch the
application (nor import what it imports). A refusal travels as a sentence in a normal reply, so
that the server can log why a node dropped out.

Evaluate and query handlers of the application are not touched: what they answer, the server sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsketch.secagg import device
from fedsketch.secagg.broadcast import RECORD, broadcast_hash
from fedsketch.secagg.codec import Codec
from fedsketch.secagg.device import Node
from fedsketch.secagg.errors import Malformed, SecAggError
from fedsketch.secagg.guard import Guard

ACTION = "secagg_{}"  # the query actions: secagg_advertise, secagg_share, ...
VECTOR_RECORD = "secagg-vector"
VECTOR_KIND = "secagg.packed"

Handler = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Handler], Message]
GuardFactory = Callable[[Context], Guard]

_STEPS = {
    "advertise": device.advertise,
    "share": device.share,
    "sign": device.sign,
    "unmask": device.unmask,
}


def client_app(
    codec: Codec, guard_of: GuardFactory, mods: Sequence[Mod] = (), outer: Sequence[Mod] = ()
) -> ClientApp:
    """A ClientApp whose train replies leave the device only as masked vectors.

    Register handlers on it as usual (`@app.train()`, ...). `guard_of` makes the guard of the
    node from its Context, once per message; `mods` run inside, next to the handlers. `outer` ones
    run before any check, for what a transport adds to messages: what they answer themselves
    leaves in the clear, so they must not look at the application's data.
    """
    app = ClientApp(mods=[*outer, _masking_mod(codec, guard_of), *mods])
    for step in _STEPS:
        app.query(ACTION.format(step))(_query_handler(step, guard_of))
    return app


def _query_handler(step: str, guard_of: GuardFactory) -> Handler:
    def handle(message: Message, context: Context) -> Message:
        request = message.content.config_records.get(RECORD, ConfigRecord())
        answer = ConfigRecord()
        try:
            node = _node(context, guard_of)
        except SecAggError as error:  # a device that is not set up
            answer["refusal"] = str(error)
        else:
            _take_step(step, node, context, request, answer, "body")
            _take_next_step(node, context, request, answer)
        return Message(RecordDict({RECORD: answer}), reply_to=message)

    return handle


def _masking_mod(codec: Codec, guard_of: GuardFactory) -> Mod:
    def mod(message: Message, context: Context, call_next: Handler) -> Message:
        if message.metadata.message_type.split(".")[0] != "train":
            return call_next(message, context)
        try:
            node = _node(context, guard_of)
        except SecAggError as error:
            refusal = ConfigRecord({"refusal": str(error)})
            return Message(RecordDict({RECORD: refusal}), reply_to=message)
        request = message.content.config_records.get(RECORD)
        if request is None:
            return _unmasked(node, message, context, call_next)
        answer = ConfigRecord()
        content = RecordDict({RECORD: answer})
        try:
            del message.content[RECORD]
            broadcast = broadcast_hash(message.content)
            ticket = device.open_mask(node, _state(context), _bytes(request, "body"), broadcast)
            codec.restore(message.content, ticket.settings)
            reply = call_next(message, context)
            if reply.has_error():
                return reply
            vector = codec.encode(reply.content, ticket.settings)
            state, masked = device.mask(node, ticket, vector)
        except SecAggError as error:
            answer["refusal"] = str(error)
        else:
            _keep(context, state)
            packed = Array("uint8", (len(masked),), VECTOR_KIND, masked)
            content[VECTOR_RECORD] = ArrayRecord({"vector": packed})
        _take_next_step(node, context, request, answer)
        return Message(content, reply_to=message)

    return mod


def _unmasked(node: Node, message: Message, context: Context, call_next: Handler) -> Message:
    """A train message without the protocol: the owner decides whether the plain reply may leave."""
    try:
        node.guard.admit_unmasked(message.metadata.message_type)
    except SecAggError as error:
        refusal = ConfigRecord({"refusal": str(error)})
        return Message(RecordDict({RECORD: refusal}), reply_to=message)
    return call_next(message, context)


def _take_step(
    step: str, node: Node, context: Context, request: ConfigRecord, answer: ConfigRecord, key: str
) -> None:
    try:
        state, reply = _STEPS[step](node, _state(context), _bytes(request, key))
    except SecAggError as error:
        answer["refusal" if key == "body" else "next-refusal"] = str(error)
    else:
        _keep(context, state)
        answer[key] = reply


def _take_next_step(
    node: Node, context: Context, request: ConfigRecord, answer: ConfigRecord
) -> None:
    """The step of the next round that rides on this message, if there is one."""
    step = request.get("next-step")
    if step in ("advertise", "share"):
        _take_step(str(step), node, context, request, answer, "next")


def _node(context: Context, guard_of: GuardFactory) -> Node:
    return Node(context.node_id, context.run_id, guard_of(context))


def _state(context: Context) -> bytes:
    record = context.state.config_records.get(RECORD, ConfigRecord())
    return _bytes(record, "state") if "state" in record else b""


def _keep(context: Context, state: bytes) -> None:
    context.state[RECORD] = ConfigRecord({"state": state})


def _bytes(record: ConfigRecord, key: str) -> bytes:
    value = record.get(key)
    if not isinstance(value, bytes):
        raise Malformed(f"The message has no bytes under {key!r}.")
    return value
