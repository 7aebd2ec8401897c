"""Strategies by name. Each module holds the server's half (SERVER) and the device's half (LOCAL_STEP) of one algorithm."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conf import Config
    from strategies.base import FederatedStrategy, LocalStep
    from strategies.noise import NoisePlan
    from tasks.flat import FlatModel
    from tasks.job import Job


def server_half(name: str) -> "type[FederatedStrategy]":
    return import_module(f"strategies.{name}").SERVER


def local_step(name: str) -> "LocalStep":
    return import_module(f"strategies.{name}").LOCAL_STEP


def plan_noise(config: "Config", job: "Job", model: "FlatModel") -> "NoisePlan":
    """The noise of a run: it depends on how long the strategy's uploads are, at most."""
    from conf.schema import Unit
    from strategies.noise import NoisePlan

    units = job.largest_shard if config.privacy.unit is Unit.example else 1
    size_of = server_half(config.strategy.name).upload_size
    # Only the first rounds may be longer than the others.
    return NoisePlan(config, max(size_of(config, model, r) for r in (1, config.rounds)), units)
