"""Which strategies, tasks, models, data sets and trackers can be chosen: built-in ones and those of installed packages.

An installed package announces what it has by Python entry points (docs/how-to/extend.md). An entry point of the group
`fedsketch.conf` names a package that holds `<group>/<name>.yaml`, and beside it the settings class in
`<group>/<name>.py`. The entry point with the same name in `fedsketch.strategies`, `fedsketch.tasks`,
`fedsketch.models`, `fedsketch.data` or `fedsketch.trackers` names the code. A feature map (`fedsketch.features`) has no
settings, only code.

Configurations arrive in messages. A name in a message only selects among what the owner of this machine has installed:
it is looked up in lists, and a module that is not in them is never imported. Built-in names come first and cannot be
replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsketch.conf.metric_names import flaw_of
from fedsketch.conf.settings import (
    DataSettings,
    ModelSettings,
    PartitionedSettings,
    Settings,
    StrategySettings,
    TaskSettings,
    TrackingSettings,
)
from fedsketch.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

FOLDER = Path(__file__).parent
_CONF = "fedsketch.conf"
FEATURES = "features"  # feature maps of a model, which have no settings of their own


@dataclass(frozen=True)
class _Group:
    """An open group: the word for one of its choices, the entry points of packages, the base class of settings, and
    the class of a choice that has no settings of its own."""

    noun: str
    entry_points: str
    base: type[Settings]
    usual: type[Settings]


_GROUPS = {
    "strategy": _Group("strategy", "fedsketch.strategies", StrategySettings, StrategySettings),
    "task": _Group("task", "fedsketch.tasks", TaskSettings, TaskSettings),
    "model": _Group("model", "fedsketch.models", ModelSettings, ModelSettings),
    "data": _Group("data set", "fedsketch.data", DataSettings, PartitionedSettings),
    "tracking": _Group("tracker", "fedsketch.trackers", TrackingSettings, TrackingSettings),
    FEATURES: _Group("feature map", "fedsketch.features", Settings, Settings),
}


def built_in(group: str) -> tuple[str, ...]:
    """Return the built-in choices of a group."""
    if group == FEATURES:
        return ("scattering",)
    return tuple(sorted(path.stem for path in (FOLDER / group).glob("*.yaml")))


@lru_cache(maxsize=64)
def settings_class(group: str, name: str) -> type[Settings]:
    """Return the settings class beside the YAML file of this choice; the usual one of its group if there is no module
    beside it."""
    ours = name in built_in(group)
    package = _CONF if ours else _conf_of(_installed(group, name)).module
    module = f"{package}.{group}.{name}"
    if not _exists(module):
        return _GROUPS[group].usual
    found = getattr(_imported(module), "SETTINGS", None)
    base = _GROUPS[group].base
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(
            f"{module} has no settings: end it with SETTINGS = CLASS, derived from "
            f"fedsketch.{base.__name__}."
        )
    flaw = flaw_of(found) if issubclass(found, TaskSettings) else None
    if flaw is not None:
        raise ConfigError(f"The settings class of {module} {flaw}.")
    return found


def refuse_unknown(group: str, name: str) -> None:
    """Raise ConfigError unless the choice is built in or from an installed package. Nothing is imported."""
    if name not in built_in(group):
        _installed(group, name)


@lru_cache(maxsize=64)
def implementation(group: str, name: str) -> Any:
    """Return the module or object that an installed package provides for this choice."""
    entry = _installed(group, name)
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{_GROUPS[group].noun.capitalize()} '{name}' cannot be loaded from {entry.value} ({error}): "
            f"repair or uninstall the package {_package(entry)}."
        ) from error


def release(group: str, name: str) -> str:
    """Return the name and version of the installed package that provides this choice."""
    entry = _installed(group, name)
    return f"{_package(entry)} {entry.dist.version if entry.dist is not None else ''}"


def configuration_folders() -> Iterator[tuple[str, Path]]:
    """Yield the installed packages with configuration files, and their folders. A file with a built-in name is
    refused."""
    *choices, conf = _entry_points(*(group.entry_points for group in _GROUPS.values()), _CONF)
    for (key, group), entries in zip(_GROUPS.items(), choices, strict=True):
        taken = set(built_in(key))
        for entry in entries:
            if entry.name in taken:
                raise _taken(entry, f"a {group.noun} named '{entry.name}'")
    for entry in conf:
        for folder in map(Path, _imported(entry.module).__path__):
            for file in sorted(folder.rglob("*.yaml")):
                name = file.relative_to(folder)
                if (FOLDER / name).exists():
                    raise _taken(entry, f"a file {name.as_posix()}")
            yield _package(entry), folder


def _taken(entry: EntryPoint, what: str) -> ConfigError:
    return ConfigError(
        f"The installed package {_package(entry)} has {what}, but fedsketch itself uses that name: rename it, or "
        "uninstall it."
    )


def _installed(group: str, name: str) -> EntryPoint:
    (entries,) = _entry_points(_GROUPS[group].entry_points)
    found = [entry for entry in entries if entry.name == name]
    noun = _GROUPS[group].noun
    if not found:
        names = sorted({*built_in(group), *(entry.name for entry in entries)})
        raise ConfigError(
            f"There is no {noun} '{name}' on this machine: choose one of {', '.join(names)}, or install a package "
            "that has it."
        )
    if len(found) > 1:
        packages = " and ".join(sorted(map(_package, found)))
        raise ConfigError(
            f"There is more than one {noun} '{name}', from the packages {packages}: uninstall one of them."
        )
    return found[0]


def _conf_of(entry: EntryPoint) -> EntryPoint:
    """Return the entry point for configuration files that the same package has."""
    (installed,) = _entry_points(_CONF)
    found = [conf for conf in installed if _package(conf) == _package(entry)]
    if len(found) != 1:
        raise ConfigError(
            f"The package {_package(entry)} has {len(found)} entry points of the group {_CONF}: give it exactly one, "
            "which names the package with its configuration files."
        )
    return found[0]


def _entry_points(*groups: str) -> list[EntryPoints]:
    """Return the entry points of each group. Every call reads the metadata of all installed packages."""
    # Imported late: it takes a tenth of a second, and most messages do not need it.
    from importlib.metadata import entry_points

    installed = entry_points()
    return [installed.select(group=group) for group in groups]


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module.split(".")[0]


def _exists(module: str) -> bool:
    """Return whether there is such a module. Its package is imported, and it is not."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is there a package
        return False
    except ImportError as error:
        raise ConfigError(
            f"The package of {module}, which an installed package names in its configuration, cannot be imported "
            f"({error})."
        ) from error


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{module}, which an installed package names in its configuration, cannot be imported ({error})."
        ) from error
