"""Strategies by name. Each module holds the server's half (SERVER) and the device's half (LOCAL_STEP) of one algorithm."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsketch.conf import Config
    from fedsketch.replay.parcels import Replayed
    from fedsketch.strategies.shared.base import FederatedStrategy, LocalStep
    from fedsketch.strategies.shared.device_noise import NoisePlan
    from fedsketch.tasks.flat import FlatModel
    from fedsketch.tasks.job import Job


def server_half(name: str) -> "type[FederatedStrategy]":
    return import_module(f"fedsketch.strategies.{name}").SERVER


def local_step(name: str) -> "LocalStep":
    return import_module(f"fedsketch.strategies.{name}").LOCAL_STEP


def replica(config: "Config", model: "FlatModel") -> "Replayed":
    """Version 0 of the state that devices follow by replay."""
    return import_module(f"fedsketch.strategies.{config.strategy.name}").REPLICA(config, model)


def plan_noise(config: "Config", job: "Job", model: "FlatModel") -> "NoisePlan":
    """The noise of a run: it depends on how long the strategy's uploads are, at most."""
    from fedsketch.conf.schema import Unit
    from fedsketch.strategies.shared.device_noise import NoisePlan
    from fedsketch.strategies.shared.sketch_norm import stretch

    units = job.largest_shard if config.privacy.unit is Unit.example else 1
    size_of = server_half(config.strategy.name).upload_size
    # Only the first rounds may be longer than the others.
    dim = max(size_of(config, model, r) for r in (1, config.rounds))
    return NoisePlan(config, dim, units, stretch(config, model.size))
