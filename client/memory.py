"""What a device remembers between rounds, in the state that Flower keeps for the node. It never leaves the device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from flwr.app import Array, ArrayRecord, RecordDict

RECORD = "memory"


@contextmanager
def memory_in(state: RecordDict) -> Iterator[dict[str, torch.Tensor]]:
    """The device's tensors by name. Changes in the block are kept if the block succeeds."""
    kept = state.array_records.get(RECORD, ArrayRecord())
    memory = {name: torch.from_numpy(array.numpy().copy()) for name, array in kept.items()}
    yield memory
    if memory:
        state[RECORD] = ArrayRecord({name: Array(x.cpu().numpy()) for name, x in memory.items()})
