"""How a process learns that the devices of its run are simulated."""

# Set by the simulating runtimes for the processes that they start, and by docker-compose.insecure.yml; on a device nobody sets it.
SIMULATION_VARIABLE = "FEDSKETCH_SIMULATION"
