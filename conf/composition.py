"""Turns Hydra's files and overrides into a checked `Config`, and a `Config` into JSON for devices and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from fedsketch.conf.data.folder import FolderConfig
from fedsketch.conf.overrides import for_hydra
from fedsketch.conf.plugins import FOLDER
from fedsketch.conf.schema import Config
from fedsketch.conf.table_settings import TableSettings
from fedsketch.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_ADAPTER = TypeAdapter(Config)


def compose(overrides: Sequence[str] = ()) -> Config:
    """Compose conf/config.yaml with Hydra overrides, as on the command line, and check it."""
    return compose_with_folder(overrides)[0]


def compose_with_folder(overrides: Sequence[str]) -> tuple[Config, Path]:
    """Return the same configuration, and the folder `hydra.run.dir` into which the run writes."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import open_dict
    from omegaconf.errors import OmegaConfBaseException

    from fedsketch.conf.nearest_value import register_resolvers
    from fedsketch.conf.search_path import search_installed_packages

    for override in overrides:
        if override.startswith("-"):
            raise ConfigError(f"{override} is neither GROUP=CHOICE nor KEY=VALUE: see --help.")
    search_installed_packages()
    register_resolvers()
    with initialize_config_dir(str(FOLDER), version_base="1.3"):
        try:
            composed = hydra_compose("config", for_hydra(overrides), return_hydra_config=True)
            folder = str(composed.hydra.run.dir or "").strip()
            with open_dict(composed):
                del composed["hydra"]
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            if _interrupted(error):
                raise KeyboardInterrupt from error
            raise ConfigError(composition_sentence(error)) from error
    if not folder:
        raise ConfigError("hydra.run.dir is empty: name a folder, or leave the key out.")
    return load(composed), Path(folder)


def _interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused this error. Hydra turns an interrupt into an error of its own."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def load(composed: DictConfig) -> Config:
    """Check what Hydra composed, and return it as a typed configuration."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        given = OmegaConf.to_container(composed, resolve=True)
        config = _ADAPTER.validate_python(given)
        _refuse_truths(given, _ADAPTER.dump_python(config))
        return config
    except OmegaConfBaseException as error:
        raise ConfigError(composition_sentence(error)) from error
    except ValidationError as error:
        raise ConfigError(_validation_sentence(error)) from error


def _refuse_truths(given: object, taken: object, key: str = "") -> None:
    """Raise ConfigError where true or false was given and taken for a number: nobody means `rounds=true`."""
    if isinstance(given, dict) and isinstance(taken, dict):
        for name in given.keys() & taken.keys():
            _refuse_truths(given[name], taken[name], f"{key}.{name}" if key else str(name))
    elif isinstance(given, bool) and not isinstance(taken, bool):
        raise ConfigError(f"{key}: input should be a number, not {str(given).lower()}.")


def to_json(config: Config) -> str:
    """Return the canonical text of a configuration. A checkpoint belongs to one such text."""
    return _ADAPTER.dump_json(config).decode()


def device_json(config: Config) -> str:
    """Return the text of a configuration that devices receive. It leaves out the tracker, which need not be installed
    on a device, the path of the first weights, which are sent with the model, the losses, which the settings of secure
    aggregation hold, and the server's own files where devices have theirs."""
    hidden: dict[str, Any] = {
        "tracking": True,
        "model": {"weights"},
        "clients": {"tolerated_losses"},
    }
    if isinstance(config.data, TableSettings) and config.data.on_devices is not None:
        config = replace(config, data=config.data.on_devices)
    if isinstance(config.data, FolderConfig):
        config = replace(
            config, data=replace(config.data, root=None, public_root=None, schema=None)
        )
    return _ADAPTER.dump_json(config, exclude=hidden).decode()


@lru_cache(maxsize=8)
def from_json(text: str) -> Config:
    """Read the text of `to_json`, with all checks, because a device does not trust the server."""
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        raise ConfigError(_validation_sentence(error)) from error


def _validation_sentence(error: ValidationError) -> str:
    """Return the first error in one sentence."""
    first = error.errors()[0]
    if first["type"] == "value_error":  # raised by our own code: it names its keys itself
        if isinstance(first["ctx"]["error"], ConfigError):
            return str(first["ctx"]["error"])
        return f"The configuration does not fit together: {first['ctx']['error']}."
    path = [str(part) for part in first["loc"]] or ["the configuration"]
    if path[0] in ("runtime", "secagg", "evaluation") and len(path) > 2:
        del path[1]  # the name of the alternative that pydantic chose
    if first["type"] == "none_required":
        return f"{'.'.join(path)} is not used with these settings: leave it out."
    return f"{'.'.join(path)}: {first['msg'][0].lower()}{first['msg'][1:]}."


def composition_sentence(error: Exception) -> str:
    """Return Hydra's error message in one line, without the list of places in which Hydra looked."""
    unreadable = re.match(r"LexerNoViableAltException: (.*)", str(error))
    if unreadable:
        key, _, value = unreadable[1].lstrip("+").partition("=")
        return f"The value of {key} cannot be read: put it in quotes, as in '{key}=\"{value}\"'."
    text = " ".join(str(error).split("Config search path")[0].split("full_key")[0].split())
    text = text.removeprefix("ConfigError raised while resolving interpolation: ")  # of `nearest`
    unknown = re.match(r"Could not override '([^']+)'", text)
    if unknown:
        return f"There is no key '{unknown[1]}': `fedsketch --cfg job` lists the keys of the chosen files."
    return text.rstrip(".") + "."
