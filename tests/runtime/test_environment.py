"""What simulated devices are told, and what cannot be simulated."""

import os

import pytest

from fedsketch.conf import compose
from fedsketch.errors import ConfigError
from fedsketch.privacy.simulation import SEED_VARIABLE, SIMULATION_VARIABLE
from fedsketch.runtime.environment import simulated_devices


@pytest.mark.parametrize("runtime", ["local", "simulation"])
def test_data_of_real_devices_cannot_be_simulated(runtime: str) -> None:
    """Every simulated client would read the same folder."""
    config = compose(["data=folder", f"runtime={runtime}"])
    with pytest.raises(ConfigError, match="runtime=deployment"), simulated_devices(config):
        pass


def test_the_environment_is_as_before_afterwards() -> None:
    before = dict(os.environ)
    with simulated_devices(compose(["privacy.randomness=seeded", "seed=3"])) as variables:
        assert variables == {SIMULATION_VARIABLE: "1", SEED_VARIABLE: "3"}
        assert variables.items() <= os.environ.items()
    assert dict(os.environ) == before
