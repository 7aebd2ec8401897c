"""The ServerApp: the same run in every runtime, given a Grid."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsketch.conf import Config, compose
from fedsketch.conf.schema import Randomness
from fedsketch.errors import ConfigError
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.secagg import SimulationRoster
from fedsketch.server.flower_keys import translated
from fedsketch.server.observers.events import StreamProgress
from fedsketch.server.observers.text_lines import LineProgress
from fedsketch.server.roster import known_roster
from fedsketch.server.rounds import Rounds
from fedsketch.server.run_folder import RUNS_VARIABLE, RunFolder

_SIMULATED = "the devices are simulated, with keys that everybody knows"
_FEW = 10  # with fewer simulated nodes, a mean is almost only noise
_FEW_TOLD = (
    "The noise of the whole budget is shared by {} clients, which leaves little to learn from: "
    "add --federation-config 'num-supernodes=60' to flwr run for more of them."
)
_SOON = 10.0  # seconds after which a run that waits for nodes prints a message


def serve(rounds: Rounds) -> ServerApp:
    """Return a ServerApp that executes this run."""
    bound = ServerApp()

    @bound.main()
    def main(grid: Grid, context: Context) -> None:
        rounds.run(grid, known_roster())

    return bound


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the ServerApp of `flwr run`. The configuration is composed from the run config. If `folder` holds a run with
    the same configuration, that run is resumed."""
    asked = context.run_config
    # First of all, because the events are marked before anything that a device sends can be in the log.
    watched = bool(asked["events"])
    progress = StreamProgress(send_files=bool(asked["send"])) if watched else LineProgress()
    nodes = _simulated_nodes(grid)
    overrides = translated(asked, shlex.split(str(asked["overrides"])), nodes)
    config = compose(overrides)
    if nodes is not None:
        _check_simulation(config, nodes)
    path = run_path(str(asked["folder"]) or f"run-{context.run_id}")
    folder = RunFolder(path)
    folder.note_overrides(overrides)
    folder.log_here()
    rounds = Rounds(config, path, progress)
    if nodes is not None:
        if nodes <= _FEW:
            progress.notes(_FEW_TOLD.format(nodes))
        rounds.run(grid, SimulationRoster())
        return
    if os.environ.get(SIMULATION_VARIABLE):
        rounds.sentence += f" NOT PRIVATE: {_SIMULATED}."
        rounds.not_private = rounds.not_private or _SIMULATED
    _report_missing_nodes(grid, config, progress)
    rounds.run(grid, known_roster())


def run_path(name: str) -> Path:
    """Return the folder of a run by its name. A submitter chooses only the name, not the place."""
    if Path(name).name != name or name == "..":
        raise ConfigError(
            f"{name!r} is not the name of a run's folder: leave out slashes and dots."
        )
    return Path(os.environ.get(RUNS_VARIABLE, "outputs")).absolute() / name


def _simulated_nodes(grid: Grid) -> int | None:
    """Return how many nodes Flower's simulation engine has; None if nodes are real. Its Grid is the only one without a
    network."""
    from flwr.superlink.grid import InMemoryGrid

    if not isinstance(grid, InMemoryGrid):
        return None
    before, now = 0, len(list(grid.get_node_ids()))
    while now == 0 or now != before:  # the engine creates nodes while this app starts
        time.sleep(0.2)
        before, now = now, len(list(grid.get_node_ids()))
    return now


def _check_simulation(config: Config, nodes: int) -> None:
    """Raise ConfigError for what Flower's simulation does not have. The run would wait for missing nodes in vain."""
    if config.data.name == "folder":
        raise ConfigError(
            "data=folder is data of real devices, and a simulation has none: choose other data."
        )
    if config.privacy.randomness is Randomness.SEEDED:
        raise ConfigError(
            "Under flwr run simulated devices do not get the seed of their noise: use fedsketch runtime=simulation "
            "privacy.randomness=seeded, or leave privacy.randomness out."
        )
    total = config.clients.total
    if total > nodes:
        raise ConfigError(
            f"Flower simulates {nodes} SuperNodes, and clients.total={total} asks for more: "
            f"add --federation-config 'num-supernodes={total}' to flwr run, or set num-clients={nodes}."
        )


def _report_missing_nodes(
    grid: Grid, config: Config, progress: StreamProgress | LineProgress
) -> None:
    """Tell the observer how many nodes are missing, and what to change. The run itself waits
    (`strategies.rounds.sampling`)."""
    total, there = config.clients.total, 0
    deadline = time.monotonic() + min(_SOON, config.clients.timeout)
    while time.monotonic() < deadline:
        there = len(list(grid.get_node_ids()))
        if there >= total:
            return
        time.sleep(0.5)
    progress.notes(
        f"{there} of clients.total={total} nodes are connected, and the run waits for the others up to "
        f"{config.clients.timeout:.0f} s (clients.timeout): start them, or stop the run and lower clients.total."
    )
