"""Overrides as a user writes them, and as Hydra reads them.

Hydra lets a user set only what stands in a file. The YAML file of an installed package may have been written before there was a key,
such as `model.weights`; the settings class has it, with its default, from the base class of its group. And Hydra's grammar knows no
letters beyond ASCII outside of quotes, as in a path with an umlaut.
"""

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
    """The same overrides. Those of keys that every choice has add the key where a file lacks it (`++key=value`), and values with other
    letters than ASCII's are quoted, unless they have quotes, brackets or commas of their own."""
    added = [f"++{text}" if text.partition("=")[0] in common_keys() else text for text in overrides]
    return [_quoted(text) for text in added]


def _quoted(override: str) -> str:
    key, _, value = override.partition("=")
    plain = value.isascii() or re.search(r"""["'\\,\[\]{}()]""", value)
    return override if plain or not key.isascii() else f'{key}="{value}"'


def common_keys() -> set[str]:
    """What the base classes have with a default."""
    return {
        f"{group}.{name}"
        for group, bases in _BASES.items()
        for base in bases
        for name, field in base.__pydantic_fields__.items()  # type: ignore[attr-defined]
        if not field.is_required()
    }
