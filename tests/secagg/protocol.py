"""The protocol step by step. Tests of other packages take it from here, because they may import from secagg only what
it exports."""

from fedsketch.secagg.coordinator import Step
from fedsketch.secagg.node import Node
from fedsketch.secagg.packing import Ring, packed_size, unpack
from fedsketch.secagg.pairwise import device, keys, messages
from fedsketch.secagg.pairwise.coordinator import Coordinator

__all__ = [
    "Coordinator",
    "Node",
    "Step",
    "device",
    "keys",
    "messages",
    "packed_size",
    "take_step",
    "unpack",
]

_STEPS = {
    Step.ADVERTISE: device.advertise,
    Step.SHARE: device.share,
    Step.SIGN: device.sign,
    Step.UNMASK: device.unmask,
}


def take_step(
    step: Step, me: Node, states: dict[int, bytes], request: bytes, vector: Ring, model: bytes
) -> bytes:
    """Let one device take one step, as the mod does it, and return the reply. The device's state in `states` is
    changed, as soon as the device has saved it."""
    if step is Step.MASK:
        ticket = device.open_mask(me, states[me.id], request, model)
        states[me.id] = device.spend(me, ticket)
        states[me.id], reply = device.mask(ticket, vector)
    else:
        states[me.id], reply = _STEPS[step](me, states[me.id], request)
    return reply
