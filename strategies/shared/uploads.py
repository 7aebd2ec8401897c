"""Records that both halves name: what a reply holds (one vector and nothing else), and where a broadcast says what to
do with it."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedsketch.privacy.mechanisms.mechanism import Mechanism, Upload

MECHANISM = "mechanism"
NUMBERS, GROUPS = "numbers", "groups"  # into how many sums a cohort is cut, if not one
EVALUATION = "evaluation"  # among the numbers: the model is to be evaluated, not trained


def reply_with(upload: Upload) -> RecordDict:
    """The reply of a device: what a mechanism has let out."""
    return summed(upload.vector)


def summed(vector: NDArray[np.generic]) -> RecordDict:
    """The same reply with the sum of a cohort, as secure aggregation makes it on the server."""
    return RecordDict({"update": ArrayRecord({"sum": Array(vector)})})


def uploaded(records: RecordDict) -> NDArray[np.generic]:
    """The vector in a reply."""
    return records.array_records["update"]["sum"].numpy()


def delivered(
    reply: Message, mechanism: Mechanism, size: int
) -> tuple[NDArray[np.generic] | None, str]:
    """The upload in a reply, or the reason why there is none."""
    if reply.has_error():
        return None, reply.error.reason or f"error {reply.error.code}"
    if "update" not in reply.content.array_records:
        told = reply.content.config_records.get("secagg", ConfigRecord())
        return None, str(told.get("refusal", "sent no update"))
    vector = uploaded(reply.content)
    fault = mechanism.fault(vector, size)
    return (vector, "") if fault is None else (None, fault)
