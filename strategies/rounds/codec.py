"""The codec: tells secure aggregation the length and the ring of our vectors, and the mechanism that devices commit
to.

A vector that reaches the codec has already been clipped, rounded to ring integers (integers modulo a power of 2) and
noised (`Mechanism.release`). So its own noise protects it as well as any upload without masks. The mechanism is part
of the round's settings, which the device's guard has checked. If another part of the message describes a mechanism, it
is overwritten.
"""

from __future__ import annotations

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.secagg import (
    Refusal,
    Ring,
    RoundSettings,
    SettingsError,
    Sizes,
    Sum,
    VectorFormat,
    ring_dtype,
)
from fedsketch.strategies.rounds.uploads import GROUPS, MECHANISM, SCALARS, summed, uploaded


class RingCodec:
    """The `secagg.Codec` of all strategies."""

    def describe(self, broadcast: RecordDict, sizes: Sizes) -> VectorFormat:
        mechanism = mechanism_from_record(broadcast.config_records[MECHANISM])
        if mechanism.ring is None:
            raise SettingsError(
                "Only ring integers can be summed under masks, and the broadcast asks for real numbers."
            )
        groups = broadcast.config_records.get(SCALARS, ConfigRecord()).get(GROUPS, 1)
        return VectorFormat(*mechanism.ring, mechanism.to_record(), int(groups))  # type: ignore[arg-type]

    def strip(self, broadcast: RecordDict) -> RecordDict:
        return RecordDict({name: broadcast[name] for name in broadcast if name != MECHANISM})

    def restore(self, broadcast: RecordDict, settings: RoundSettings) -> None:
        broadcast[MECHANISM] = ConfigRecord(dict(settings.application))

    def encode(self, reply: RecordDict, settings: RoundSettings) -> Ring:
        vector = uploaded(reply)
        if vector.shape != (settings.dim,) or vector.dtype != np.uint64:
            raise Refusal(
                f"The round expects {settings.dim} ring integers, but the local step made {vector.dtype} of shape "
                f"{vector.shape}."
            )
        return vector.astype(ring_dtype(settings.bits))

    def encode_nothing(self, settings: RoundSettings) -> Ring:
        mechanism = mechanism_from_record(settings.application)
        with Stream() as stream:
            upload = mechanism.protect_nothing(stream)
        return upload.vector.astype(ring_dtype(settings.bits))

    def decode(self, result: Sum, settings: RoundSettings, broadcast: RecordDict) -> RecordDict:
        return summed(result.total.astype(np.uint64))
