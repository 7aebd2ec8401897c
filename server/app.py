"""The ServerApp: the same run in every runtime, given a Grid."""

import shlex
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from conf import compose
from server.progress import LogProgress
from server.rounds import Rounds


def serve(rounds: Rounds) -> ServerApp:
    """A ServerApp that plays this run."""
    bound = ServerApp()

    @bound.main()
    def main(grid: Grid, context: Context) -> None:
        rounds.play(grid)

    return bound


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Under `flwr run`: the configuration is composed here, from the run config's `overrides`."""
    config = compose(shlex.split(str(context.run_config["overrides"])))
    Rounds(config, Path("outputs") / f"run-{context.run_id}", LogProgress()).play(grid)
