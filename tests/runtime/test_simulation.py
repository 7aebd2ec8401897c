"""What is checked before Ray is asked for clients."""

import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedsketch.conf import compose
from fedsketch.conf.schema import SimulationRuntimeConfig
from fedsketch.errors import ClusterError
from fedsketch.runtime.simulation import Stoppable, check_resources

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


class _Silent:
    """A grid whose nodes never answer."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return []


def test_a_server_that_waits_for_replies_ends_when_it_is_stopped() -> None:
    app, waiting = ServerApp(), threading.Event()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        while True:
            grid.pull_messages(["never"])
            waiting.set()
            time.sleep(0.001)

    stoppable, ended = Stoppable(app), []
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})

    def play(grid: Any) -> None:
        with pytest.raises(InterruptedError):
            stoppable(grid, context)
        ended.append(True)

    thread = threading.Thread(target=play, args=(_Silent(),), daemon=True)
    thread.start()
    assert waiting.wait(10)
    stoppable.stop()
    thread.join(10)
    assert ended
