"""The protocol step by step. Tests of other packages take it from here, because they may import from secagg only what
it exports."""

from fedsketch.secagg import x25519
from fedsketch.secagg.node import Node
from fedsketch.secagg.packing import Ring, packed_size, unpack
from fedsketch.secagg.pairwise import device, messages
from fedsketch.secagg.pairwise.server_session import PairwiseSession
from fedsketch.secagg.server_session import RoundStage
from fedsketch.secagg.two_trips import device as two_trips_device
from fedsketch.secagg.wire import MessageKind

__all__ = [
    "MessageKind",
    "Node",
    "PairwiseSession",
    "RoundStage",
    "device",
    "messages",
    "packed_size",
    "take_step",
    "two_trips_device",
    "unpack",
    "x25519",
]

_STEPS = {
    RoundStage.ADVERTISE: device.advertise,
    RoundStage.SHARE: device.share,
    RoundStage.SIGN: device.sign,
    RoundStage.UNMASK: device.unmask,
}


def take_step(
    step: RoundStage, me: Node, states: dict[int, bytes], request: bytes, vector: Ring, model: bytes
) -> bytes:
    """Let one device take one step, as the mod does it, and return the reply. The device's state in `states` is
    changed, as soon as the device has saved it."""
    if step is RoundStage.MASK:
        ticket = device.open_mask(me, states[me.id], request, model)
        states[me.id] = device.spend(me, ticket)
        states[me.id], reply = device.mask(ticket, vector)
    else:
        states[me.id], reply = _STEPS[step](me, states[me.id], request)
    return reply
