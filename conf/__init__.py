"""The configuration: Hydra's files, the dataclasses that check them, and how one becomes the other."""

from fedsketch.conf.compose import ConfigError, compose, from_json, load, to_json
from fedsketch.conf.schema import Config

__all__ = ["Config", "ConfigError", "compose", "from_json", "load", "to_json"]
