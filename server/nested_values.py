"""Turns nested mappings into flat lists, for tables and trackers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(tree: Mapping[str, Any], joint: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value in nested mappings, with the keys on the path to it joined by `joint`."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, joint, f"{prefix}{key}{joint}")
        else:
            yield f"{prefix}{key}", value


def numeric_values(tree: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in nested mappings, by keys like `epsilon/server`. Null values are left out."""
    found = leaves(tree, "/")
    return {
        key: float(value)
        for key, value in found
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
