"""Turns overrides as a user writes them into overrides that Hydra can read.

Hydra lets a user set only keys that stand in a file. The YAML file of an installed package may be older than a key such
as `model.weights`, although its settings class has the key, with a default, from the base class of its group. And
outside of quotes Hydra's grammar has no letters beyond ASCII, as they occur in a path with an umlaut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedsketch.conf.settings import (
    DataSettings,
    ModelSettings,
    PartitionedSettings,
    Settings,
    StrategySettings,
    TaskSettings,
    TrackingSettings,
)

_BASES: dict[str, tuple[type[Settings], ...]] = {
    "strategy": (StrategySettings,),
    "task": (TaskSettings,),
    "model": (ModelSettings,),
    "data": (DataSettings, PartitionedSettings),
    "tracking": (TrackingSettings,),
}


def for_hydra(overrides: Sequence[str]) -> list[str]:
    """Return the overrides in Hydra's grammar. A key that every choice of a group has is added where a file lacks it
    (`++key=value`). A value with letters beyond ASCII is quoted, unless it has quotes, brackets or commas already."""
    added = [f"++{text}" if text.partition("=")[0] in common_keys() else text for text in overrides]
    return [_quoted(text) for text in added]


def _quoted(override: str) -> str:
    key, _, value = override.partition("=")
    plain = value.isascii() or re.search(r"""["'\\,\[\]{}()]""", value)
    return override if plain or not key.isascii() else f'{key}="{value}"'


def common_keys() -> set[str]:
    """Return the keys that the base classes of settings have, with a default."""
    return {
        f"{group}.{name}"
        for group, bases in _BASES.items()
        for base in bases
        for name, field in base.__pydantic_fields__.items()  # type: ignore[attr-defined]
        if not field.is_required()
    }
