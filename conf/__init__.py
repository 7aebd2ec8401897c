"""The configuration: Hydra's files, the dataclasses that check them, and how one becomes the other."""

from __future__ import annotations

from fedsketch.conf.composition import compose, device_json, from_json, load, to_json
from fedsketch.conf.schema import Config
from fedsketch.errors import ConfigError

__all__ = ["Config", "ConfigError", "compose", "device_json", "from_json", "load", "to_json"]
