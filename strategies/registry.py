"""Finds strategies by name: our own, and those of installed packages (plug-ins).

The module of a strategy defines SERVER, the class of its server half, and DEVICE, the class of its device half. A
strategy with `broadcast=replay` also defines REPLICA (see `make_replica`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedsketch.conf import Config
from fedsketch.conf.plugins import built_in, implementation
from fedsketch.delivery.parcels import Replayed
from fedsketch.strategies.algorithm import DeviceHalf, Strategy
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Workload


def make_strategy(config: Config, workload: Workload, model: FlatModel) -> Strategy[Any]:
    """Return the server half of the configured strategy."""
    made: Strategy[Any] = _module(config.strategy.name).SERVER(config, workload, model)
    return made


def make_device_half(name: str) -> DeviceHalf[Any]:
    """Return the device half of a strategy."""
    half: DeviceHalf[Any] = _module(name).DEVICE()
    return half


def make_replica(config: Config, model: FlatModel) -> Replayed:
    """Return the initial state (version 0) for devices that update the model themselves from the broadcast sums."""
    replica: Replayed = _module(config.strategy.name).REPLICA(config, model)
    return replica


def _module(name: str) -> Any:
    if name in built_in("strategy"):
        return import_module(f"fedsketch.strategies.{name}")
    return implementation("strategy", name)
