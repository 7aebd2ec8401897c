"""The content of a reply: one vector, of a client or summed over a cohort, and nothing else."""

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray


def upload(vector: NDArray[np.generic]) -> RecordDict:
    """Real numbers, or ring integers."""
    return RecordDict({"update": ArrayRecord({"sum": Array(vector)})})


def uploaded(records: RecordDict) -> NDArray[np.generic]:
    """The inverse of `upload`."""
    return records.array_records["update"]["sum"].numpy()
