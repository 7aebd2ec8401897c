"""The protocol on a Flower ClientApp.

`client_app` makes a ClientApp whose train handlers never answer unmasked. A mod around them first admits, then
charges, then lets the handler train, turns its reply into the masked vector and drops everything else. Once the guard
is charged a vector leaves, whatever happens in the handler. If it fails, the vector is that of a device without data
(`Codec.encode_nothing`), and the reason stays in the node's own log. So nothing that depends on the device's data
leaves it but the vector: no text, no size, no missing answer, and no time if the guard waits (`Guard.wait`). For an
unforeseen exception the answer is one fixed sentence, because Flower would send the text of the exception. Where
devices are simulated (`Guard.quiet` is false) a failure is an error reply with its reason, for whoever is writing the
handler.

The other stages are separate query handlers, which do not touch the application (nor import what it imports). A refusal
is sent as a sentence in a normal reply, so that the server can log why a node dropped out. It is made only from
settings, policy and roster.

Evaluate and query handlers of the application are not changed: the server sees what they answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from logging import getLogger
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .broadcast import broadcast_hash
from .codec import Codec
from .device_text import clean_text
from .errors import Malformed, Refusal, SecAggError
from .guard import Guard
from .names import (
    ACTION,
    BODY,
    EPOCHS,
    NEXT,
    NEXT_REFUSAL,
    NEXT_STEP,
    RECORD,
    REFUSAL,
    STATE,
    is_train,
    with_vector,
)
from .node import Node
from .packing import Ring
from .pairwise import device as pairwise
from .settings import RoundSettings
from .two_trips import device as two_trips
from .wire import MessageKind

Handler = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Handler], Message]
GuardFactory = Callable[[Context], Guard]
Prepare = Callable[[RecordDict, RecordDict, Context], RecordDict | None]

log = getLogger(__name__)

# What a device does for each kind of query, and where it keeps what it remembers.
_STEPS: dict[str, tuple[Callable[[Node, bytes, bytes], tuple[bytes, bytes]], str]] = {
    "advertise": (pairwise.advertise, STATE),
    "share": (pairwise.share, STATE),
    "sign": (pairwise.sign, STATE),
    "unmask": (pairwise.unmask, STATE),
    "hello": (two_trips.hello, EPOCHS),
    "answer": (two_trips.answer, EPOCHS),
}
_AHEAD = (
    "advertise",
    "share",
    "hello",
)  # the steps of a later round that a message may ask for too


def client_app(
    codec: Codec,
    guard_of: GuardFactory,
    mods: Sequence[Mod] = (),
    *,
    prepare: Prepare | None = None,
    detached: Sequence[str] = (),
) -> ClientApp:
    """Make a ClientApp whose train replies leave the device only as masked vectors.

    Register handlers on it as usual (`@app.train()`, ...). `guard_of` makes the guard of the node from its Context,
    once per message; `mods` run inside, next to the handlers. `prepare` is called last before the guard is charged. It
    gets the broadcast, the records named `detached` (each device has its own, so they are not under the hash that all
    devices share) and the context. It raises `Refusal`, or returns records to answer instead of training, or None to
    continue. It must not read the device's data.
    """
    app = ClientApp(mods=[_masking_mod(codec, guard_of, prepare, detached), *mods])
    for step in _STEPS:
        app.query(ACTION.format(step))(_query_handler(step, guard_of))
    return app


def _query_handler(step: str, guard_of: GuardFactory) -> Handler:
    def handle(message: Message, context: Context) -> Message:
        request = message.content.config_records.get(RECORD, ConfigRecord())
        answer = ConfigRecord()
        try:
            node = _node(context, guard_of)
        except SecAggError as error:  # the device is not set up
            answer[REFUSAL] = _sentence(error)
        else:
            _take_step(step, node, context, request, answer, BODY)
            _take_next_step(node, context, request, answer)
        return Message(RecordDict({RECORD: answer}), reply_to=message)

    return handle


def _masking_mod(
    codec: Codec, guard_of: GuardFactory, prepare: Prepare | None, detached: Sequence[str]
) -> Mod:
    def mod(message: Message, context: Context, call_next: Handler) -> Message:
        if not is_train(message):
            return call_next(message, context)
        begun = time.monotonic()
        content = message.content
        apart = RecordDict({name: content.pop(name) for name in detached if name in content})
        request = content.pop(RECORD, None)
        try:
            node = _node(context, guard_of)
            if isinstance(request, ConfigRecord):
                try:
                    reply = masked(node, request, message, apart, context, call_next)
                except Exception:
                    reply = _refused(message, _unforeseen(node))
            else:
                reply = _unmasked(node, message, apart, context, call_next, prepare)
            node.guard.wait(begun)
        except SecAggError as error:
            return _refused(message, _sentence(error))
        return reply

    def masked(
        node: Node,
        request: ConfigRecord,
        message: Message,
        apart: RecordDict,
        context: Context,
        call_next: Handler,
    ) -> Message:
        content, answer = message.content, ConfigRecord()
        try:
            body, model = _bytes(request, BODY), broadcast_hash(content)
            device, key = _protocol_of(body)
            ticket = device.open_mask(node, _state(node, context, key), body, model)
            codec.restore(content, ticket.settings)
            instead = _prepared(prepare, node, content, apart, context)
            if instead is not None:
                return Message(instead, reply_to=message)
            _keep(context, key, device.spend(node, ticket))
        except SecAggError as error:
            answer[REFUSAL] = _sentence(error, node)
            reply = RecordDict({RECORD: answer})
        else:
            # From here on nothing may refuse, because the vector is charged.
            vector = _trained(codec, node, ticket.settings, message, context, call_next)
            state, body = device.mask(ticket, vector)
            _keep(context, key, state)
            reply = with_vector(answer, body)
        _take_next_step(node, context, request, answer)
        return Message(reply, reply_to=message)

    return mod


def _prepared(
    prepare: Prepare | None, node: Node, content: RecordDict, apart: RecordDict, context: Context
) -> RecordDict | None:
    """Return what the application answers instead of training, if anything. It has not read the device's data yet."""
    if prepare is None:
        return None
    try:
        return prepare(content, apart, context)
    except SecAggError:
        raise
    except Exception as error:
        if not node.guard.quiet:
            raise
        log.exception("A message could not be prepared for training")
        raise Refusal("The message is not one that this device can train on.") from error


def _trained(
    codec: Codec,
    node: Node,
    settings: RoundSettings,
    message: Message,
    context: Context,
    call_next: Handler,
) -> Ring:
    """Return the vector of the handler's reply; if the handler fails in any way, that of a device without data."""
    try:
        reply = call_next(message, context)
        if reply.has_error():
            raise Refusal(reply.error.reason)
        return codec.encode(reply.content, settings)
    except Exception:
        if not node.guard.quiet:
            raise
        log.exception("Training failed; the vector of a device without data leaves instead")
        return codec.encode_nothing(settings)


def _unmasked(
    node: Node,
    message: Message,
    apart: RecordDict,
    context: Context,
    call_next: Handler,
    prepare: Prepare | None,
) -> Message:
    """Answer a train message without the protocol: the owner decides whether the plain reply may leave."""
    node.guard.admit_unmasked(message.metadata.message_type)
    instead = _prepared(prepare, node, message.content, apart, context)
    return call_next(message, context) if instead is None else Message(instead, reply_to=message)


def _unforeseen(node: Node) -> str:
    """Return the fixed answer to any exception that is being handled. Where devices are simulated, raise the exception
    again."""
    if not node.guard.quiet:
        raise
    log.exception("A message could not be answered")
    return "This device could not answer: the log of its node says why."


def _sentence(error: SecAggError, node: Node | None = None) -> str:
    """Return why the device refuses. The owner finds it in the node's own log too, unless devices are simulated: there
    the server's log has it."""
    if node is None or node.guard.quiet:
        log.warning("This device refuses: %s", clean_text(str(error)))
    return str(error)


def _refused(message: Message, sentence: str) -> Message:
    refusal = ConfigRecord({REFUSAL: sentence})
    return Message(RecordDict({RECORD: refusal}), reply_to=message)


def _take_step(
    step: str, node: Node, context: Context, request: ConfigRecord, answer: ConfigRecord, key: str
) -> None:
    refusal = REFUSAL if key == BODY else NEXT_REFUSAL
    take, kept = _STEPS[step]
    try:
        state, reply = take(node, _state(node, context, kept), _bytes(request, key))
    except SecAggError as error:
        answer[refusal] = _sentence(error, node)
    except Exception:
        answer[refusal] = _unforeseen(node)
    else:
        _keep(context, kept, state)
        answer[key] = reply


def _take_next_step(
    node: Node, context: Context, request: ConfigRecord, answer: ConfigRecord
) -> None:
    """Take the step of the next round that came with this message, if there is one."""
    step = request.get(NEXT_STEP)
    if step in _AHEAD:
        _take_step(str(step), node, context, request, answer, NEXT)


def _node(context: Context, guard_of: GuardFactory) -> Node:
    return Node(context.node_id, context.run_id, guard_of(context))


def _protocol_of(request: bytes) -> tuple[Any, str]:
    """Return the device's side of the protocol of a request for a vector, and where it keeps what it remembers."""
    in_two_trips = request[:1] == bytes([MessageKind.SHARING_REQUEST])
    return (two_trips, EPOCHS) if in_two_trips else (pairwise, STATE)


def _state(node: Node, context: Context, key: str) -> bytes:
    record = context.state.config_records.get(RECORD, ConfigRecord())
    state = _bytes(record, key) if key in record else b""
    if key == EPOCHS and (cleaned := two_trips.cleaned(node, state)) != state:
        _keep(context, key, state := cleaned)
    return state


def _keep(context: Context, key: str, state: bytes) -> None:
    record = context.state.config_records.get(RECORD, ConfigRecord())
    context.state[RECORD] = ConfigRecord({**record, key: state})


def _bytes(record: ConfigRecord, key: str) -> bytes:
    value = record.get(key)
    if not isinstance(value, bytes):
        raise Malformed(f"The message has no bytes under {key!r}.")
    return value
