"""Tensors in a message. A few short ones are bytes in a record of settings, in the format of safetensors: each Flower
array costs 500 bytes beside its numbers. Longer ones are Flower arrays, which travel in pieces."""

from __future__ import annotations

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsketch.secagg import MOST_IN_RECORD

_TENSORS = "tensors"


def with_tensors(
    name: str, head: ConfigRecord, tensors: dict[str, torch.Tensor], arrays: str
) -> RecordDict:
    """Return a content of the record `head`, under its name, with these tensors. Long ones are in a record with the
    name `arrays`."""
    # safetensors writes memory as it lies, so it must lie in the order of C.
    numbers = {key: np.asarray(x.cpu().numpy(), order="C") for key, x in tensors.items()}
    if sum(number.nbytes for number in numbers.values()) <= MOST_IN_RECORD:
        head[_TENSORS] = safetensors.numpy.save(numbers)
        return RecordDict({name: head})
    record = ArrayRecord({key: Array(number) for key, number in numbers.items()})
    return RecordDict({name: head, arrays: record})


def tensors_in(content: RecordDict, name: str, arrays: str) -> dict[str, torch.Tensor]:
    """Return the tensors in the record of this name, or in that of long ones, if there are any."""
    packed = content.config_records[name].get(_TENSORS)
    if isinstance(packed, bytes):
        return safetensors.torch.load(packed)
    return opened(content, arrays) if arrays in content else {}


def opened(content: RecordDict, arrays: str) -> dict[str, torch.Tensor]:
    """Return the tensors in a record of arrays."""
    return {
        key: torch.from_numpy(array.numpy().copy())
        for key, array in content.array_records[arrays].items()
    }
