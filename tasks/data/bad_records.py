"""The records of a device that cannot be used, or for which its data card has no room.

One record must not move the contribution of another. So a device does not stop at a record that it cannot use: that
record's place stays blank. The log of the node says how many there are, what kind of fault they have and which ones
they are by their number. It repeats nothing of their contents.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_NAMED = 10  # places that the log lists for each kind of fault

log = logging.getLogger(__name__)


class BadRecords:
    """Collects the faults of a device's records. `most` is how many records the data card has room for; None: any
    number."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.surplus = False
        self.faults: dict[str, list[int]] = {}
        self._places: set[int] = set()

    def add(self, place: int, fault: str) -> None:
        """Leave a place blank. `fault` completes "a record ...", and holds nothing of the record."""
        if place not in self._places:
            self._places.add(place)
            self.faults.setdefault(fault, []).append(place)

    def room(self, count: int) -> int:
        """Return how many of this many records count: the first ones."""
        if self.most is None or count <= self.most:
            return count
        self.surplus = True
        return self.most

    def present(self, count: int) -> Tensor:
        """Return which of this many places hold a record, in bool."""
        there = torch.ones(count, dtype=torch.bool)
        there[sorted(self._places)] = False
        return there

    def report(self) -> None:
        """Write to the node's log what was left out."""
        for fault, places in sorted(self.faults.items()):
            first = ", ".join(str(place + 1) for place in sorted(places)[:_NAMED])
            more = " and others" if len(places) > _NAMED else ""
            log.warning(
                "Left out of this device's data: %d %s %s (number %s%s).",
                len(places),
                "record" if len(places) == 1 else "records",
                fault,
                first,
                more,
            )
        if self.surplus:
            log.warning(
                "This device has more records than the %d that its data card has room for. Only the first ones count: "
                "describe the data again with fedsketch-enroll --data.",
                self.most,
            )


@contextmanager
def one_record(bad: BadRecords | None, place: int, fault: str) -> Iterator[None]:
    """Turn every exception of the block into a blank place. Without `bad` exceptions are raised, for owners and servers
    who want to know."""
    try:
        yield
    except Exception:
        if bad is None:
            raise
        bad.add(place, fault)
