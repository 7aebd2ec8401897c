"""Strategies by name, ours or those of installed packages. Each module holds the server's half (SERVER) and the device's half
(LOCAL_STEP) of one algorithm."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsketch.conf import Config
    from fedsketch.replay.parcels import Replayed
    from fedsketch.strategies.shared.base import FederatedStrategy, LocalStep
    from fedsketch.strategies.shared.device_noise import NoisePlan
    from fedsketch.tasks.flat import FlatModel
    from fedsketch.tasks.job import Job


def _module(name: str) -> Any:
    # Not above: most messages to a device need neither a strategy nor a configuration.
    from fedsketch.conf.plugins import built_in, implementation

    if name in built_in("strategy"):
        return import_module(f"fedsketch.strategies.{name}")
    return implementation("strategy", name)


def server_half(name: str) -> "type[FederatedStrategy]":
    return _module(name).SERVER


def local_step(name: str) -> "LocalStep":
    return _module(name).LOCAL_STEP


def replica(config: "Config", model: "FlatModel") -> "Replayed":
    """Version 0 of the state that devices follow by replay."""
    return _module(config.strategy.name).REPLICA(config, model)


def plan_noise(config: "Config", job: "Job", model: "FlatModel") -> "NoisePlan":
    """The noise of a run: it depends on how long the strategy's uploads are, at most."""
    from fedsketch.privacy.accounting.releases import Unit
    from fedsketch.strategies.shared.device_noise import NoisePlan
    from fedsketch.strategies.shared.sketch_norm import stretch

    units = job.largest_shard if config.privacy.unit is Unit.EXAMPLE else 1
    size_of = server_half(config.strategy.name).upload_size
    # Only the first rounds may be longer than the others.
    dim = max(size_of(config, model, r) for r in (1, config.rounds))
    return NoisePlan(config, dim, units, stretch(config, model.size))
