"""What is checked before Ray is asked for clients."""

import pytest

from fedsketch.conf import compose
from fedsketch.conf.schema import SimulationRuntimeConfig
from fedsketch.runtime.simulation import ClusterError, check_resources

NODES = [{"CPU": 2.0, "memory": 1e9}, {"CPU": 8.0, "GPU": 1.0}]


def _settings(*overrides: str) -> SimulationRuntimeConfig:
    runtime = compose(["runtime=simulation", *overrides]).runtime
    assert isinstance(runtime, SimulationRuntimeConfig)
    return runtime


@pytest.mark.parametrize(
    "wanted",
    [[], ["runtime.cpus_per_client=8"], ["runtime.gpus_per_client=0.5"]],
)
def test_a_client_that_fits_on_some_machine_passes(wanted: list[str]) -> None:
    check_resources(NODES, _settings(*wanted))


@pytest.mark.parametrize(
    "wanted",
    [
        ["runtime.cpus_per_client=100"],
        ["runtime.cpus_per_client=9"],  # not two machines together
        ["runtime.gpus_per_client=2"],
    ],
)
def test_a_client_that_fits_on_no_machine_is_refused_with_what_is_there(wanted: list[str]) -> None:
    with pytest.raises(ClusterError) as refused:
        check_resources(NODES, _settings(*wanted))
    assert wanted[0] in str(refused.value)
    assert "2 CPUs, 0 GPUs; 8 CPUs, 1 GPUs" in str(refused.value)
