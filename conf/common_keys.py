"""Keys that every choice of an open group has, whether or not its YAML file names them.

Hydra lets a user set only what stands in a file. The YAML file of an installed package may have been written before there was a key,
such as `model.weights`; the settings class has it, with its default, from the base class of its group.
"""

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


def settable(overrides: Sequence[str]) -> list[str]:
    """The same overrides; those of such keys add the key where a file lacks it, which is what Hydra writes as `++key=value`."""
    return [
        f"++{override}" if override.partition("=")[0] in common_keys() else override
        for override in overrides
    ]


def common_keys() -> set[str]:
    """What the base classes have with a default."""
    return {
        f"{group}.{name}"
        for group, bases in _BASES.items()
        for base in bases
        for name, field in base.__pydantic_fields__.items()  # type: ignore[attr-defined]
        if not field.is_required()
    }
