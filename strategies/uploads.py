"""The content of a reply: one vector that stands for one client, or for a cohort, and nothing else."""

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray


def upload(vector: NDArray[np.generic], clients: int = 1) -> RecordDict:
    """Real numbers, or ring integers, summed over so many clients."""
    return RecordDict(
        {
            "update": ArrayRecord({"sum": Array(vector)}),
            "cohort": MetricRecord({"clients": clients}),
        }
    )


def uploaded(records: RecordDict) -> tuple[NDArray[np.generic], int]:
    """The inverse of `upload`."""
    vector = records.array_records["update"]["sum"].numpy()
    return vector, int(records.metric_records["cohort"]["clients"])  # type: ignore[arg-type]
