"""The records that both halves of a strategy use: the reply of a device (one vector and nothing else), and the names
of records in a broadcast."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedsketch.privacy.mechanisms.mechanism import Mechanism, Upload
from fedsketch.secagg import RECORD, REFUSAL

MECHANISM = "mechanism"
SCALARS = "numbers"  # the name that the record has had since 0.1
GROUPS = "groups"  # among the scalars: how many groups are summed separately, if more than one
EVALUATION = "evaluation"  # among the scalars: the model is to be evaluated, not trained


def reply_with(upload: Upload) -> RecordDict:
    """Return the reply of a device, with the upload that a mechanism made."""
    return summed(upload.vector)


def summed(vector: NDArray[np.generic]) -> RecordDict:
    """Return the same kind of reply for the sum of a cohort, which secure aggregation makes on the server."""
    return RecordDict({"update": ArrayRecord({"sum": Array(vector)})})


def uploaded(records: RecordDict) -> NDArray[np.generic]:
    """Return the vector in a reply."""
    return records.array_records["update"]["sum"].numpy()


def delivered(
    reply: Message, mechanism: Mechanism, size: int
) -> tuple[NDArray[np.generic] | None, str]:
    """Return the upload in a reply, or None and the reason why there is none."""
    if reply.has_error():
        return None, reply.error.reason or f"error {reply.error.code}"
    if "update" not in reply.content.array_records:
        answer = reply.content.config_records.get(RECORD, ConfigRecord())
        return None, str(answer.get(REFUSAL, "sent no update"))
    vector = uploaded(reply.content)
    fault = mechanism.fault(vector, size)
    return (vector, "") if fault is None else (None, fault)
