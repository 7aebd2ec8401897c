"""The public keys of the devices, where the server has them.

The devices check every signature themselves, by rosters of their own, so the server's copy protects nobody. It names a node
whose signature is wrong, and lets it drop out alone: without a copy all its peers refuse the round.
"""

import os
from pathlib import Path

from fedsketch.conf import ConfigError
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.secagg import Directory, Roster, SimulationRoster

# The file that fedsketch-register wrote, or another that lists the same keys.
ROSTER_VARIABLE = "FEDSKETCH_ROSTER"


def known_roster() -> Directory | None:
    """What the environment names; None if it names nothing."""
    if os.environ.get(SIMULATION_VARIABLE):
        return SimulationRoster()
    path = os.environ.get(ROSTER_VARIABLE)
    if not path:
        return None
    try:
        return Roster.load(Path(path))
    except OSError as error:
        raise ConfigError(
            f"The roster {path} cannot be read ({error.strerror}): write it with fedsketch-register, or unset {ROSTER_VARIABLE}."
        ) from error
