"""How a process finds out that the devices of its run are simulated: from its environment variables and from the
program that started it, never from a message."""

from __future__ import annotations

import sys
from types import ModuleType

# The simulation runtimes and docker-compose.insecure.yml set this variable for the processes that they start. On a
# real device nobody sets it.
SIMULATION_VARIABLE = "FEDSKETCH_SIMULATION"

# The seed of a reproducible run (privacy.randomness=seeded). The noise of such a run is not secret.
SEED_VARIABLE = "FEDSKETCH_SEEDED_NOISE"


def in_simulation_engine() -> bool:
    """Return whether this process is a Ray actor. Of all parts of Flower, only the simulation engine runs ClientApps
    in Ray actors.

    A message cannot make a process an actor. A SuperNode handles messages in a separate process (`flwr-clientapp`),
    which Ray did not start. A process becomes an actor only if Ray's own worker program starts it; importing Ray or
    connecting to a cluster is not enough. An attacker who can start processes on a device needs no message.
    """
    ray = sys.modules.get("ray")  # an actor has imported Ray; a device need not have it
    return ray is not None and ray.is_initialized() and _is_actor(ray)


def _is_actor(ray: ModuleType) -> bool:
    context = ray.get_runtime_context()
    return context.worker.mode == ray.WORKER_MODE and context.get_actor_id() is not None
