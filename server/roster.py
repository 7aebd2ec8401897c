"""The public keys of the devices, if the server has them.

Devices check every signature themselves, with their own rosters, so the server's copy protects nobody. It lets the
server name a node with a wrong signature, and drop only that node. Without a copy all its peers refuse the round.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedsketch.errors import ConfigError
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.secagg import Directory, Roster, SettingsError, SimulationRoster

# The file that fedsketch-register writes, or another one with the same keys.
ROSTER_VARIABLE = "FEDSKETCH_ROSTER"


def known_roster() -> Directory | None:
    """Return the roster that the environment variable names; None if it is not set."""
    if os.environ.get(SIMULATION_VARIABLE):
        return SimulationRoster()
    path = os.environ.get(ROSTER_VARIABLE)
    if not path:
        return None
    try:
        return Roster.load(Path(path))
    except OSError as error:
        raise ConfigError(
            f"The roster {path} cannot be read ({error.strerror}): write it with fedsketch-register, or unset "
            f"{ROSTER_VARIABLE}."
        ) from error
    except SettingsError as error:
        raise ConfigError(f"{error} (The file is that of {ROSTER_VARIABLE}.)") from error
