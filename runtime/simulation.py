"""Runs clients in several processes by Flower's Ray engine, on this machine or on a running Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Iterable

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedsketch.client.app import AppByName
from fedsketch.conf.schema import SimulationRuntimeConfig
from fedsketch.errors import ClusterError
from fedsketch.runtime.threads import client_variables


class Stoppable(ServerApp):
    """A ServerApp that stops waiting for replies once it is stopped. Flower runs it in a thread that would outlive an
    interrupt."""

    def __init__(self, app: ServerApp) -> None:
        super().__init__()
        self._app = app
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def __call__(self, grid: Grid, context: Context) -> None:
        pull = grid.pull_messages

        def pull_unless_stopped(message_ids: Iterable[str]) -> Iterable[Message]:
            if self._stopped.is_set():
                raise InterruptedError("The run was interrupted.")
            return pull(message_ids)

        grid.pull_messages = pull_unless_stopped  # type: ignore[method-assign]
        self._app(grid, context)


def run_simulation(
    server_app: ServerApp,
    nodes: int,
    settings: SimulationRuntimeConfig,
    environment: dict[str, str],
) -> None:
    """Run both apps to the end. `environment` is passed on to the client processes."""
    # Otherwise every start prints a warning.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray
    from flwr.simulation import run_simulation as run_flower_simulation

    variables = {
        **environment,
        **client_variables(settings.cpus_per_client),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    try:
        _check_address(settings.address)
        # Flower would start Ray itself, but would not pass our environment on to the processes of a running cluster.
        ray.init(
            address=settings.address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": variables},
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ClusterError(
            f"No Ray cluster answers at runtime.address={settings.address}: start one there, or set "
            f"runtime.address=null ({error})."
        ) from error
    stoppable = Stoppable(server_app)
    try:
        machines = ray.nodes()  # type: ignore[no-untyped-call]
        check_resources([node["Resources"] for node in machines if node["Alive"]], settings)
        run_flower_simulation(
            stoppable,
            AppByName(),
            num_supernodes=nodes,
            backend_config={
                "client_resources": {
                    "num_cpus": settings.cpus_per_client,
                    "num_gpus": settings.gpus_per_client,
                }
            },
        )
    finally:
        stoppable.stop()
        ray.shutdown()


def check_resources(nodes: list[dict[str, float]], settings: SimulationRuntimeConfig) -> None:
    """Raise ClusterError if no machine of the cluster can hold one client. Ray itself would wait for ever."""
    cpus, gpus = settings.cpus_per_client, settings.gpus_per_client
    if any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        return
    there = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
    raise ClusterError(
        f"No machine has runtime.cpus_per_client={cpus:g} and runtime.gpus_per_client={gpus:g} ({there}): lower them."
    )


def _check_address(address: str | None) -> None:
    """Raise OSError if nothing listens at host:port. Ray itself would wait for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=5).close()
