"""fedsketch: private federated learning with sketched gradients and secure aggregation, on Flower.

Everything is imported as `fedsketch.something`. In an installed package, the packages lie below this folder. In a
checkout, and in the bundle that Flower makes of it, they lie beside this folder (`client/`, `server/`, ...), and this
file finds them there.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

__all__ = ["load", "run"]

_HERE = Path(__file__).parent
if not (_HERE / "client").is_dir():
    __path__.append(str(_HERE.parent))

if TYPE_CHECKING:
    from fedsketch.server.loaded_model import LoadedModel


def run(overrides: Sequence[str] = (), *, quiet: bool = False) -> Path:
    """Play a run with the overrides that the command `fedsketch` takes, and return the folder that holds its results.

    The folder is `hydra.run.dir`, below `outputs` if not set. `quiet` prints no progress. What is logged goes into
    `run.log` there. A configuration that cannot be run raises `fedsketch.conf.ConfigError`.

    >>> folder = fedsketch.run(["strategy=dp_fedavg", "privacy.epsilon=4"])
    >>> model = fedsketch.load(folder)
    """
    from fedsketch.conf.composition import compose_with_folder
    from fedsketch.runtime import (
        cli,  # imports the configuration, and Flower and torch while it runs
    )
    from fedsketch.server.run_folder import RunFolder

    config, folder = compose_with_folder(overrides)
    RunFolder(folder).claim(overrides)
    cli.run(config, folder, quiet)
    return folder


def load(folder: "str | Path", *, best: bool = False) -> "LoadedModel":
    """Return the trained model of a run as a torch module. Its inputs are examples without any preparation, such as
    images with pixels from 0 to 1. `best` takes the model that a validation found best instead of the last one."""
    from fedsketch.server.loaded_model import load as load_model  # it imports torch

    return load_model(Path(folder), best=best)
