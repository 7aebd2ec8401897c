"""The vector in a message: the records that hold it, and the codec by which secure aggregation sums it.

The codec tells secure aggregation the length and the ring of our vectors, and the mechanism that devices commit to. A
vector that reaches it has already been clipped, rounded to ring integers (integers modulo a power of 2 or a prime) and
noised (`Mechanism.protect`). So its own noise protects it as well as any upload without masks. The mechanism is part
of the round's settings, which the device's guard has checked. If another part of the message describes a mechanism, it
is overwritten.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedsketch.errors import ConfigError
from fedsketch.privacy.mechanisms.mechanism import Mechanism, Upload
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.secagg import (
    MOST_IN_RECORD,
    RECORD,
    REFUSAL,
    ProtocolName,
    Refusal,
    Ring,
    RoundSettings,
    SettingsError,
    Sizes,
    Sum,
    VectorFormat,
    clean_text,
    ring_dtype,
)

MECHANISM = "mechanism"
UPDATE = "update"  # the record with the vector of a reply
_SUM = "sum"  # in it: the vector, as an array if it is long
_TYPE = "type"  # in it: the type of the numbers of a short vector
HEAD = "head"  # the record of all scalars
CONFIG = "config"  # in the head: the configuration as text, or its name (`delivery.settings_once`)
ROUND = "round"  # in the head
GROUPS = "groups"  # in the head: how many groups are summed separately, if more than one
EVALUATION = "evaluation"  # in the head: the model is to be evaluated, not trained


def reply_with(upload: Upload) -> RecordDict:
    """Return the reply of a device, with the upload that a mechanism made."""
    return summed(upload.vector)


def summed(vector: NDArray[np.generic]) -> RecordDict:
    """Return the same kind of reply for the sum of a cohort, which secure aggregation makes on the server."""
    if vector.nbytes > MOST_IN_RECORD:
        return RecordDict({UPDATE: ArrayRecord({_SUM: Array(vector)})})
    return RecordDict({UPDATE: ConfigRecord({_TYPE: vector.dtype.str, _SUM: vector.tobytes()})})


def uploaded(records: RecordDict) -> NDArray[np.generic]:
    """Return the vector in a reply."""
    record = records[UPDATE]
    if isinstance(record, ArrayRecord):
        return record[_SUM].numpy()
    # Copied, because what is read from bytes cannot be written to.
    return np.frombuffer(record[_SUM], np.dtype(str(record[_TYPE]))).copy()  # type: ignore[arg-type]


def delivered(
    reply: Message, mechanism: Mechanism, size: int
) -> tuple[NDArray[np.generic] | None, str]:
    """Return the upload in a reply, or None and the reason why there is none. Nothing in the reply is trusted."""
    if reply.has_error():
        return None, clean_text(reply.error.reason or f"error {reply.error.code}")
    if UPDATE not in reply.content:
        answer = reply.content.config_records.get(RECORD, ConfigRecord())
        return None, clean_text(answer.get(REFUSAL, "sent no update"))
    try:
        vector = uploaded(reply.content)
        fault = mechanism.fault(vector, size)
    except Exception:  # bytes that are no array can raise anything
        return None, "sent an update that cannot be read"
    return (vector, "") if fault is None else (None, clean_text(fault))


def sketch_size(sketch_dim: float, d: int) -> int:
    """Return how many numbers `sketch_dim` stands for: the number itself, or a fraction of d if it is below 1. Raises
    ConfigError for more than d."""
    if sketch_dim < 1:
        return max(1, round(sketch_dim * d))
    k = round(sketch_dim)
    if k > d:
        raise ConfigError(
            f"strategy.sketch_dim={k:,} is more than the {d:,} numbers that are trained: lower it, "
            "or set strategy=dp_fedavg, which sends all of them."
        )
    return k


class RingCodec:
    """The `secagg.Codec` of all strategies."""

    def describe(self, broadcast: RecordDict, sizes: Sizes) -> VectorFormat:
        mechanism = mechanism_from_record(broadcast.config_records[MECHANISM])
        if mechanism.ring is None:
            raise SettingsError(
                "Only ring integers can be summed under masks, and the broadcast asks for real numbers."
            )
        groups = broadcast.config_records.get(HEAD, ConfigRecord()).get(GROUPS, 1)
        dim, bits, modulus = mechanism.ring
        protocol = ProtocolName.TWO_TRIPS if modulus % 2 else ProtocolName.PAIRWISE
        return VectorFormat(dim, bits, mechanism.to_record(), int(groups), protocol)  # type: ignore[arg-type]

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
