"""Who this device is."""

from __future__ import annotations

from dataclasses import dataclass

from .guard import Guard


@dataclass(frozen=True)
class Node:
    """This device: its id in the run, and its owner's guard."""

    id: int
    run: int
    guard: Guard
