"""Strategies by name, ours or those of installed packages. Each module holds the server's half (SERVER) and the
device's half (DEVICE) of one algorithm."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsketch.conf import Config
    from fedsketch.replay.parcels import Replayed
    from fedsketch.strategies.shared.base import DeviceHalf, FederatedStrategy
    from fedsketch.strategies.shared.cohort import Cohorts
    from fedsketch.tasks.flat import FlatModel
    from fedsketch.tasks.job import Job


def make_strategy(
    config: "Config", job: "Job", model: "FlatModel", cohorts: "Cohorts"
) -> "FederatedStrategy":
    """The server's half of the configured strategy."""
    return _module(config.strategy.name).SERVER(config, job, model, cohorts)


def make_device_half(name: str) -> "DeviceHalf":
    return _module(name).DEVICE()


def make_replica(config: "Config", model: "FlatModel") -> "Replayed":
    """Version 0 of the state that devices follow by replay."""
    return _module(config.strategy.name).REPLICA(config, model)


def _module(name: str) -> Any:
    # Not above: most messages to a device need neither a strategy nor a configuration.
    from fedsketch.conf.plugins import built_in, implementation

    if name in built_in("strategy"):
        return import_module(f"fedsketch.strategies.{name}")
    return implementation("strategy", name)
