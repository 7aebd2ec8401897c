"""The interface between an application's records and the vector that is summed.

The server's codec says how long the vector is, in which ring, and what the application commits to.
The device's codec turns the reply of the train handler into that vector; clipping, rounding and noise
happen there. The server's codec turns the sum back into records. Nothing else of a reply is sent: what
is not in the vector does not leave the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from flwr.app import RecordDict

from .names import ProtocolName
from .packing import Ring
from .settings import RoundSettings, Scalar, Sizes


@dataclass(frozen=True)
class VectorFormat:
    """Length and ring of the vector, what the application commits to in the round's hash, into how many groups the
    cohort is divided, and by which protocol vectors are summed (both None: as the options say)."""

    dim: int
    bits: int
    application: Mapping[str, Scalar] = field(default_factory=dict)
    groups: int | None = None
    protocol: ProtocolName | None = None


@dataclass(frozen=True)
class Sum:
    """The sum of one group, modulo the modulus of the round, and who is in it."""

    total: Ring
    survivors: tuple[int, ...]
    group: int = 0


class Codec(Protocol):
    """What plans, encodes and decodes vectors."""

    def describe(self, broadcast: RecordDict, sizes: Sizes) -> VectorFormat:
        """Return, on the server, the vector that answers this broadcast in a cohort of these sizes."""

    def strip(self, broadcast: RecordDict) -> RecordDict:
        """Return, on the server, the broadcast as it is sent to the devices, without what the settings contain
        already."""

    def restore(self, broadcast: RecordDict, settings: RoundSettings) -> None:
        """Device: add again what `strip` removed, from the settings that the guard has admitted."""

    def encode(self, reply: RecordDict, settings: RoundSettings) -> Ring:
        """Return, on a device, the vector of `settings.dim` numbers below `settings.modulus` for a train
        handler's reply.

        Raise `Refusal` when the reply does not fit or `settings.application` is not acceptable;
        the sentence goes to the server, so it must not quote the reply.
        """

    def encode_nothing(self, settings: RoundSettings) -> Ring:
        """Return, on a device, the vector of a device whose handler failed. It is that of a device without data,
        protected like any other."""

    def decode(self, result: Sum, settings: RoundSettings, broadcast: RecordDict) -> RecordDict:
        """Return, on the server, the records that the strategy sees as the one reply of a group."""
