"""The configuration: Hydra's files, the dataclasses that check them, and how one becomes the other."""

from conf.compose import ConfigError, compose, from_json, load, to_json
from conf.schema import Config

__all__ = ["Config", "ConfigError", "compose", "from_json", "load", "to_json"]
