"""Who decides on a device: its owner's policy and ledger, or, in a simulation, nobody."""

import os

from flwr.app import Context

from secagg import Guard, Refusal, SimulationGuard

# Set by the simulating runtimes for the processes that they start; on a device nobody sets it.
SIMULATION_VARIABLE = "FEDSKETCH_SIMULATION"


def guard_of(context: Context) -> Guard:
    """The guard of the node that handles a message."""
    if os.environ.get(SIMULATION_VARIABLE):
        return SimulatedGuard(context.node_id)
    raise Refusal("This device has no policy yet.")


class SimulatedGuard(SimulationGuard):
    """No policy, public keys, and uploads without masks are allowed: there is nobody to protect."""

    def admit_unmasked(self, message_type: str) -> None:
        """The simulated server may ask for plain uploads (secagg=none)."""
