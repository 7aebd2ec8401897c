"""What secure aggregation must know of our vectors: their length and ring, and the mechanism that the devices commit
to.

Clipping, rounding and noise have happened before (`Mechanism.release`): a vector that reaches the codec is already ring
integers, and would be as well protected by its own noise alone as any upload without masks. The mechanism travels in
the round's settings, which the device's guard has judged; whatever else a message may say about it is overwritten.
"""

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
from fedsketch.strategies.shared.uploads import GROUPS, MECHANISM, NUMBERS, summed, uploaded


class RingCodec:
    """The `secagg.Codec` of all strategies."""

    def describe(self, broadcast: RecordDict, sizes: Sizes) -> VectorFormat:
        mechanism = mechanism_from_record(broadcast.config_records[MECHANISM])
        if mechanism.ring is None:
            raise SettingsError(
                "Only ring integers can be summed under masks, and the broadcast asks for real numbers."
            )
        groups = broadcast.config_records.get(NUMBERS, ConfigRecord()).get(GROUPS, 1)
        return VectorFormat(*mechanism.ring, mechanism.to_record(), int(groups))  # type: ignore[arg-type]

    def strip(self, broadcast: RecordDict) -> RecordDict:
        return RecordDict({name: broadcast[name] for name in broadcast if name != MECHANISM})

    def restore(self, broadcast: RecordDict, settings: RoundSettings) -> None:
        broadcast[MECHANISM] = ConfigRecord(dict(settings.application))

    def encode(self, reply: RecordDict, settings: RoundSettings) -> Ring:
        vector = uploaded(reply)
        if vector.shape != (settings.dim,) or vector.dtype != np.uint64:
            raise Refusal(
                f"The round is about {settings.dim} ring integers; the local step made {vector.dtype} of shape "
                f"{vector.shape}."
            )
        return vector.astype(ring_dtype(settings.bits))

    def silence(self, settings: RoundSettings) -> Ring:
        mechanism = mechanism_from_record(settings.application)
        with Stream() as stream:
            upload = mechanism.release_nothing(stream)
        return upload.vector.astype(ring_dtype(settings.bits))

    def decode(self, result: Sum, settings: RoundSettings, broadcast: RecordDict) -> RecordDict:
        return summed(result.total.astype(np.uint64))
