"""How a process learns that the devices of its run are simulated: variables of the environment, never a message."""

# Set by the simulating runtimes for the processes that they start, and by docker-compose.insecure.yml; on a device nobody sets it.
SIMULATION_VARIABLE = "FEDSKETCH_SIMULATION"

# The seed of a run that was asked to be reproducible (privacy.randomness=seeded): its noise is then no secret.
SEED_VARIABLE = "FEDSKETCH_SEEDED_NOISE"
