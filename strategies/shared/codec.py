"""What secure aggregation must know of our vectors: their length and ring, and the terms that the devices commit to.

Clipping, rounding and noise have happened before (`client.release`): a vector that reaches the codec is already ring integers, and
would be as well protected by its own noise alone as any upload without masks.
"""

import numpy as np
from flwr.app import RecordDict

from fedsketch.secagg import (
    Refusal,
    Ring,
    RoundSettings,
    SettingsError,
    Sizes,
    Sum,
    VectorPlan,
    ring_dtype,
)
from fedsketch.strategies.shared.terms import RingTerms, Terms, terms_from_record
from fedsketch.strategies.shared.uploads import upload, uploaded


class RingCodec:
    """The `secagg.Codec` of all strategies."""

    def plan(self, broadcast: RecordDict, sizes: Sizes) -> VectorPlan:
        terms = _terms(broadcast)
        if not isinstance(terms, RingTerms):
            raise SettingsError(
                "Only ring integers can be summed under masks, and the broadcast asks for real numbers."
            )
        return VectorPlan(terms.plan.dim, terms.plan.bits, terms.to_record())

    def encode(self, reply: RecordDict, settings: RoundSettings) -> Ring:
        if dict(reply.config_records.get("terms", {})) != dict(settings.application):
            raise Refusal(
                "The broadcast asks for other terms than those that this round was opened with."
            )
        vector = uploaded(reply)
        if vector.shape != (settings.dim,) or vector.dtype != np.uint64:
            raise Refusal(
                f"The round is about {settings.dim} ring integers; the local step made {vector.dtype} of shape {vector.shape}."
            )
        return vector.astype(ring_dtype(settings.bits))

    def decode(self, result: Sum, settings: RoundSettings, broadcast: RecordDict) -> RecordDict:
        return upload(result.total.astype(np.uint64))


def _terms(broadcast: RecordDict) -> Terms:
    return terms_from_record(dict(broadcast.config_records["terms"]))  # type: ignore[arg-type]
