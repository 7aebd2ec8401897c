"""One device takes one step of the protocol, as the mod does it."""

from fedsketch.secagg import device
from fedsketch.secagg.coordinator import Step
from fedsketch.secagg.device import Node
from fedsketch.secagg.packing import Ring

_STEPS = {
    Step.ADVERTISE: device.advertise,
    Step.SHARE: device.share,
    Step.SIGN: device.sign,
    Step.UNMASK: device.unmask,
}


def take_step(
    step: Step, me: Node, states: dict[int, bytes], request: bytes, vector: Ring, model: bytes
) -> bytes:
    """Return the reply. The device's state in `states` is changed, as soon as the device has saved it."""
    if step is Step.MASK:
        ticket = device.open_mask(me, states[me.id], request, model)
        states[me.id] = device.spend(me, ticket)
        states[me.id], reply = device.mask(ticket, vector)
    else:
        states[me.id], reply = _STEPS[step](me, states[me.id], request)
    return reply
