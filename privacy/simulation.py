"""How a process learns that the devices of its run are simulated: by its environment and by who started it, never by a
message."""

import sys
from types import ModuleType

# Set by the simulating runtimes for the processes that they start, and by docker-compose.insecure.yml; on a device
# nobody sets it.
SIMULATION_VARIABLE = "FEDSKETCH_SIMULATION"

# The seed of a run that was asked to be reproducible (privacy.randomness=seeded): its noise is then no secret.
SEED_VARIABLE = "FEDSKETCH_SEEDED_NOISE"


def in_simulation_engine() -> bool:
    """Whether this process is an actor of Ray, which is where Flower's simulation engine, and nothing else of Flower,
    runs ClientApps.

    No message can bring this about. A SuperNode handles messages in a process of its own (`flwr-clientapp`), which Ray
    did not start:
    a process becomes an actor only when Ray's own program for workers starts it, and neither importing Ray nor
    connecting to a cluster makes it one. Whoever can start processes on a device needs no message.
    """
    ray = sys.modules.get("ray")  # an actor has imported it; a device need not
    return ray is not None and ray.is_initialized() and _is_actor(ray)


def _is_actor(ray: ModuleType) -> bool:
    context = ray.get_runtime_context()
    return context.worker.mode == ray.WORKER_MODE and context.get_actor_id() is not None
