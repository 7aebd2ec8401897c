"""Products of inputs that come again in every round with directions that seldom change, kept while both are the same.

A device or a simulation owns one of these; nothing in it leaves. Entries are found by what they were made of.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

from torch import Tensor

ROOM = 256 << 20  # bytes


class KeptProducts:
    """X P by a key that says which X and which P; those that were asked for last, up to so many bytes."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._free = room
        self._kept: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._lock = Lock()  # threads of a simulation share it

    def product(self, inputs: Tensor, basis: Tensor, key: Hashable) -> Tensor:
        """Not to be written into."""
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
