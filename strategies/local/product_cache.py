"""A cache of matrix products X P. The inputs X are the same in every round, and the directions P rarely change.

A device or a simulation owns one cache, and its contents never leave it. Entries are found by a key that identifies X
and P.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

from torch import Tensor

ROOM = 256 << 20  # bytes


class ProductCache:
    """Keeps the products that were used last, up to `room` bytes."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._free = room
        self._kept: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._lock = Lock()  # threads of a simulation share it

    def product(self, inputs: Tensor, basis: Tensor, key: Hashable) -> Tensor:
        """Return inputs @ basis, from the cache if the key is known. The caller must not write into the result."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        made = inputs @ basis.to(inputs)
        with self._lock:
            if made.nbytes <= self._room and key not in self._kept:
                self._kept[key] = made
                self._free -= made.nbytes
                while self._free < 0:
                    _, oldest = self._kept.popitem(last=False)
                    self._free += oldest.nbytes
        return made

    def __len__(self) -> int:
        return len(self._kept)
