"""Strategies by name. Each module holds the server's half (SERVER) and the device's half (LOCAL_STEP) of one algorithm."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conf import Config
    from strategies.base import FederatedStrategy, LocalStep
    from strategies.noise import NoisePlan
    from tasks.job import Job


def server_half(name: str) -> "type[FederatedStrategy]":
    return import_module(f"strategies.{name}").SERVER


def local_step(name: str) -> "LocalStep":
    return import_module(f"strategies.{name}").LOCAL_STEP


def plan_noise(config: "Config", job: "Job", parameters: int) -> "NoisePlan":
    """The noise of a run: it depends on how long the strategy's uploads are."""
    from conf.schema import Unit
    from strategies.noise import NoisePlan

    units = job.largest_shard if config.privacy.unit is Unit.example else 1
    return NoisePlan(
        config, server_half(config.strategy.name).upload_size(config, parameters), units
    )
