"""Resumes a run from its folder, with the configuration with which it was started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedsketch.conf import Config, compose, to_json
from fedsketch.errors import ConfigError
from fedsketch.server.run_folder import RunFolder


def resumed_run(folder: Path, overrides: Sequence[str]) -> tuple[Config, Path]:
    """Return the configuration of the run in `folder`. Overrides may repeat the run's configuration, but not change
    it."""
    files = RunFolder(folder)
    try:
        config, before = files.read_config(), files.read_overrides()
    except (OSError, yaml.YAMLError, TypeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{folder} is not the folder of a run: it has no readable {files.config.name} and {files.overrides.name}."
        ) from error
    if overrides:
        # A run may be older than the present defaults.
        known = [f"secagg={config.secagg.name}", f"secagg.bits={config.secagg.bits}"]
        wanted = compose([*known, *before, *overrides])
        different = _differences(json.loads(to_json(config)), json.loads(to_json(wanted)))
        if different:
            raise ConfigError(
                f"{folder} has another configuration ({'; '.join(different)}): resume without these, or start a new "
                "run."
            )
    return config, folder


def _differences(here: Any, there: Any, key: str = "") -> list[str]:
    if isinstance(here, dict) and isinstance(there, dict):
        keys = sorted(here.keys() | there.keys())
        return [
            line
            for k in keys
            for line in _differences(here.get(k), there.get(k), f"{key}.{k}" if key else k)
        ]
    return [] if here == there else [f"{key} is {here} there, {there} here"]
