"""What simulated devices must know before the first message, and what no message may tell them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fedsketch.conf import Config
from fedsketch.conf.schema import Randomness
from fedsketch.errors import ConfigError
from fedsketch.privacy.simulation import SEED_VARIABLE, SIMULATION_VARIABLE


def refuse_missing_devices(config: Config) -> None:
    """Raise ConfigError if the data are on real devices but the runtime has none."""
    if config.data.name == "folder" and config.runtime.name in ("local", "cohort", "simulation"):
        raise ConfigError(
            f"data=folder is data of real devices, and runtime={config.runtime.name} has none: choose "
            "runtime=deployment, or other data."
        )


@contextmanager
def simulated_devices(config: Config) -> Iterator[dict[str, str]]:
    """Mark this process as one that simulates devices, without policy and ledger. The yielded variables do the same for
    other processes. Noise comes from the seed if and only if the run is to be reproducible."""
    refuse_missing_devices(config)
    variables = {SIMULATION_VARIABLE: "1"}
    if config.privacy.randomness is Randomness.SEEDED:
        variables[SEED_VARIABLE] = str(config.seed)
    before = {name: os.environ.pop(name, None) for name in (SIMULATION_VARIABLE, SEED_VARIABLE)}
    os.environ.update(variables)
    try:
        yield variables
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
