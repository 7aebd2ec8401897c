"""The ServerApp: the same run in every runtime, given a Grid."""

import os
import shlex
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsketch.conf import ConfigError, compose
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.server.progress import StreamProgress
from fedsketch.server.roster import known_roster
from fedsketch.server.rounds import Rounds
from fedsketch.server.run_folder import RUNS_VARIABLE, RunFolder

_SIMULATED = "the devices are simulated, with keys that everybody knows"


def serve(rounds: Rounds) -> ServerApp:
    """A ServerApp that plays this run."""
    bound = ServerApp()

    @bound.main()
    def main(grid: Grid, context: Context) -> None:
        rounds.play(grid, known_roster())

    return bound


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Under `flwr run`: the configuration is composed here, from the run config's `overrides`. A `folder` that holds a run of the same
    configuration is resumed."""
    asked = context.run_config
    overrides = shlex.split(str(asked["overrides"]))
    path = run_path(str(asked["folder"]) or f"run-{context.run_id}")
    folder = RunFolder(path)
    folder.note_overrides(overrides)
    folder.log_here()
    progress = StreamProgress(send_files=bool(asked["send"]))
    rounds = Rounds(compose(overrides), path, progress)
    if os.environ.get(SIMULATION_VARIABLE):
        rounds.sentence += f" NOT PRIVATE: {_SIMULATED}."
        rounds.not_private = rounds.not_private or _SIMULATED
    rounds.play(grid, known_roster())


def run_path(name: str) -> Path:
    """The folder of a run by its name; a submitter chooses the name, and nothing but the name."""
    if Path(name).name != name or name == "..":
        raise ConfigError(
            f"{name!r} is not the name of a run's folder: leave out slashes and dots."
        )
    return Path(os.environ.get(RUNS_VARIABLE, "outputs")).absolute() / name
