"""Finds strategies by name: our own, and those of installed packages (plug-ins).

The module of a strategy defines SERVER, the class of its server half, and DEVICE, the class of its device half. A
strategy with `broadcast=replay` also defines REPLICA (see `make_replica`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsketch.conf import Config
    from fedsketch.delivery.parcels import Replayed
    from fedsketch.strategies.rounds.base import DeviceHalf, FederatedStrategy
    from fedsketch.strategies.rounds.sampling import CohortSampler
    from fedsketch.tasks.models.flat_model import FlatModel
    from fedsketch.tasks.workload import Workload


def make_strategy(
    config: "Config", job: "Workload", model: "FlatModel", cohorts: "CohortSampler"
) -> "FederatedStrategy":
    """Return the server half of the configured strategy."""
    return _module(config.strategy.name).SERVER(config, job, model, cohorts)


def make_device_half(name: str) -> "DeviceHalf":
    return _module(name).DEVICE()


def make_replica(config: "Config", model: "FlatModel") -> "Replayed":
    """Return the initial state (version 0) for devices that update the model themselves from the broadcast sums."""
    return _module(config.strategy.name).REPLICA(config, model)


def _module(name: str) -> Any:
    # Imported here, because most messages to a device need neither a strategy nor a configuration.
    from fedsketch.conf.plugins import built_in, implementation

    if name in built_in("strategy"):
        return import_module(f"fedsketch.strategies.{name}")
    return implementation("strategy", name)
