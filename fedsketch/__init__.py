"""fedsketch: private federated learning with sketched gradients and secure aggregation, on Flower.

    folder = fedsketch.run(["strategy=dp_fedavg", "privacy.epsilon=4"])
    model = fedsketch.load(folder)

The functions take the overrides that the commands take (`fedsketch --help`). The classes are for packages that add a
strategy, a task, a data set, a model or a tracker (docs/how-to/extend.md). A name is imported when it is used, so
importing fedsketch costs nothing. `fedsketch.secagg`, `fedsketch.privacy` and `fedsketch.sketching` are libraries of
their own.

In an installed package, the packages lie below this folder. In a checkout they lie beside it, and this folder has a
link to each. In the bundle that Flower makes there are no links, and this file finds them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsketch.errors import ConfigError, FedsketchError
from fedsketch.lazy import lazy

if TYPE_CHECKING:
    from fedsketch.attacks.audit import Report
    from fedsketch.conf import Config
    from fedsketch.conf.settings import (
        DataSettings,
        Metric,
        ModelSettings,
        Optimizer,
        PartitionedSettings,
        StrategySettings,
        TaskSettings,
        TrackingSettings,
    )
    from fedsketch.conf.targets import Targets
    from fedsketch.conf.types import Count, Fraction, NotNegative, Positive, frozen
    from fedsketch.server.loaded_model import LoadedModel
    from fedsketch.server.observers.observer import Observer
    from fedsketch.server.plan import Plan
    from fedsketch.strategies.algorithm import (
        Aggregate,
        Clients,
        DeviceHalf,
        LocalWork,
        Payload,
        Strategy,
    )
    from fedsketch.strategies.rounds.messages import Broadcast
    from fedsketch.tasks.data.examples import Dataset, Examples
    from fedsketch.tasks.models.flat_model import FlatModel
    from fedsketch.tasks.task import Task

    __version__: str

_HERE = Path(__file__).parent
if not (_HERE / "client").is_dir():
    __path__.append(str(_HERE.parent))

_MODULES = {
    "Aggregate": "strategies.algorithm",
    "Broadcast": "strategies.rounds.messages",
    "Clients": "strategies.algorithm",
    "Config": "conf",
    "Count": "conf.types",
    "DataSettings": "conf.settings",
    "Dataset": "tasks.data.examples",
    "DeviceHalf": "strategies.algorithm",
    "Examples": "tasks.data.examples",
    "FlatModel": "tasks.models.flat_model",
    "Fraction": "conf.types",
    "LoadedModel": "server.loaded_model",
    "LocalWork": "strategies.algorithm",
    "Metric": "conf.settings",
    "ModelSettings": "conf.settings",
    "NotNegative": "conf.types",
    "Observer": "server.observers.observer",
    "Optimizer": "conf.settings",
    "PartitionedSettings": "conf.settings",
    "Payload": "strategies.algorithm",
    "Plan": "server.plan",
    "Positive": "conf.types",
    "Report": "attacks.audit",
    "Strategy": "strategies.algorithm",
    "StrategySettings": "conf.settings",
    "Targets": "conf.targets",
    "Task": "tasks.task",
    "TaskSettings": "conf.settings",
    "TrackingSettings": "conf.settings",
    "frozen": "conf.types",
}
if not TYPE_CHECKING:
    _lazy, __dir__ = lazy(__name__, _MODULES)

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("fedsketch")
        return _lazy(name)


def compose(overrides: Sequence[str] = ()) -> Config:
    """Return the configuration that these overrides make, checked. What cannot be run raises `ConfigError`."""
    from fedsketch.conf import compose as compose_config

    return compose_config(overrides)


def run(overrides: Sequence[str] = (), *, quiet: bool = False) -> Path:
    """Run a configuration to its end, and return the folder that holds the results.

    The folder is `hydra.run.dir`, below `outputs` if not set. `quiet` prints no progress. What is logged goes into
    `run.log` there. Whatever is wrong and can be corrected raises a `FedsketchError`.

    >>> folder = fedsketch.run(["strategy=dp_fedavg", "privacy.epsilon=4"])
    >>> model = fedsketch.load(folder)
    """
    from fedsketch.conf.composition import compose_with_folder
    from fedsketch.runtime import cli
    from fedsketch.server.run_folder import RunFolder

    config, folder = compose_with_folder(overrides)
    with RunFolder(folder).claimed(overrides):
        cli.run(config, folder, quiet)
    return folder


def plan(overrides: Sequence[str] = ()) -> Plan:
    """Return what a run would do, before anything is trained: noise, epsilon against each adversary, bytes.

    >>> fedsketch.plan(["privacy.epsilon=2"]).noise_multiplier
    """
    from fedsketch.server.plan import make_plan

    return make_plan(compose(overrides))


def audit(overrides: Sequence[str] = (), *, trials: int | None = None, workers: int = 1) -> Report:
    """Attack a run with its own code, and return how much the attacks learned. `trials` is how many scores each
    adversary gets at least; more take longer and prove more.

    >>> fedsketch.audit(["strategy=dp_fedavg"]).exceeded()  # the claims that are proved wrong
    []
    """
    from fedsketch.attacks.audit import TRIALS
    from fedsketch.attacks.audit import audit as attack

    return attack(compose(overrides), trials or TRIALS, workers=workers)


def load(folder: str | Path, *, best: bool = False) -> LoadedModel:
    """Return the trained model of a run as a torch module. Its inputs are examples without any preparation, such as
    images with pixels from 0 to 1. `best` takes the model that a validation found best instead of the last one."""
    from fedsketch.server.loaded_model import load as load_model

    return load_model(Path(folder), best=best)


__all__ = [
    "Aggregate",
    "Broadcast",
    "Clients",
    "Config",
    "ConfigError",
    "Count",
    "DataSettings",
    "Dataset",
    "DeviceHalf",
    "Examples",
    "FedsketchError",
    "FlatModel",
    "Fraction",
    "LoadedModel",
    "LocalWork",
    "Metric",
    "ModelSettings",
    "NotNegative",
    "Observer",
    "Optimizer",
    "PartitionedSettings",
    "Payload",
    "Plan",
    "Positive",
    "Report",
    "Strategy",
    "StrategySettings",
    "Targets",
    "Task",
    "TaskSettings",
    "TrackingSettings",
    "__version__",
    "audit",
    "compose",
    "frozen",
    "load",
    "plan",
    "run",
]
