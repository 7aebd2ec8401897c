"""What simulated devices must know before the first message, and no message may tell them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fedsketch.conf import Config, ConfigError
from fedsketch.conf.schema import Randomness
from fedsketch.privacy.simulation import SEED_VARIABLE, SIMULATION_VARIABLE


def refuse_missing_devices(config: Config) -> None:
    """Raise ConfigError for data that only real devices have where there are none."""
    if config.data.name == "folder" and config.runtime.name in ("local", "cohort", "simulation"):
        raise ConfigError(
            f"data=folder is what real devices hold, and runtime={config.runtime.name} has none: choose runtime=deployment, or other data."
        )


@contextmanager
def simulated_devices(config: Config) -> Iterator[dict[str, str]]:
    """Mark this process, and by the yielded variables others, as one that simulates devices: no policy, no ledger; and noise from
    the seed, if and only if the run is to be reproducible."""
    refuse_missing_devices(config)
    variables = {SIMULATION_VARIABLE: "1"}
    if config.privacy.randomness is Randomness.seeded:
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
