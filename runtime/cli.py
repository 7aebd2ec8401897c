"""The command `fedsketch`: compose, check and run a configuration, or resume a run. Errors of the user end in one
sentence and exit code 1."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

# Set before flwr is imported, here and in every process that it starts.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from fedsketch.command_line import sentence_of
from fedsketch.conf import Config, load
from fedsketch.conf.composition import FOLDER, compose_with_folder, composition_sentence
from fedsketch.conf.overrides import for_hydra
from fedsketch.conf.schema import CohortRuntimeConfig, SimulationRuntimeConfig
from fedsketch.errors import ConfigError
from fedsketch.runtime.help import FEDSKETCH, answer
from fedsketch.runtime.resume import resumed_run
from fedsketch.server.run_folder import RunFolder

if TYPE_CHECKING:
    from fedsketch.server.observers.observer import Display

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG)


def main() -> None:
    """Entry point of the console script."""
    arguments = sys.argv[1:]
    if text := answer(FEDSKETCH, arguments):
        print(text)
        return
    if any(argument.startswith("-") for argument in arguments):
        _hydra_main()  # sweeps (-m), --cfg job, --hydra-help, ...
        return
    with one_sentence():
        resume = [a.removeprefix("resume=") for a in arguments if a.startswith("resume=")]
        stop = [a.removeprefix("stop=") for a in arguments if a.startswith("stop=")]
        overrides = [a for a in arguments if not a.startswith(("resume=", "stop="))]
        if stop:
            from fedsketch.runtime.deployment import stop_deployment

            print(f"Stopped run {stop_deployment(*resumed_run(Path(stop[-1]), overrides))}.")
        elif resume:
            config, folder = resumed_run(Path(resume[-1]), overrides)
            with RunFolder(folder).reserved():
                run(config, folder)
        else:
            config, folder = compose_with_folder(overrides)
            with RunFolder(folder).claimed(overrides):
                run(config, folder)


def run(config: Config, folder: Path, quiet: bool = False) -> None:
    """Play a run in its runtime, and write its results into its folder. `quiet` prints no progress."""
    from rich.console import Console

    from fedsketch.server.observers.console import ConsoleProgress

    console = Console(quiet=quiet)
    console.print(f"Folder: {folder}", soft_wrap=True, highlight=False, markup=False)
    try:
        with ConsoleProgress(console) as progress:
            if config.runtime.name in ("processes", "deployment"):
                _run_elsewhere(config, folder, progress)
            else:
                _run_here(config, folder, progress)
    except KeyboardInterrupt as interrupt:
        if str(interrupt) or not RunFolder(folder).config.exists():
            raise
        raise KeyboardInterrupt(f"resume it with `fedsketch resume={folder}`.") from interrupt


def _run_here(config: Config, folder: Path, progress: Display) -> None:
    """Run the ServerApp in this process."""
    from fedsketch.client.app import app as client_app
    from fedsketch.runtime.batched_grid import BatchedGrid
    from fedsketch.runtime.environment import simulated_devices
    from fedsketch.runtime.local import LocalGrid
    from fedsketch.runtime.memory import kept_memory
    from fedsketch.runtime.simulation import run_simulation
    from fedsketch.runtime.threads import fitting_threads
    from fedsketch.server.app import serve
    from fedsketch.server.roster import known_roster
    from fedsketch.server.rounds import Rounds
    from fedsketch.tasks.workload import Workload

    RunFolder(folder).log_here()
    flower = logging.getLogger("flwr")
    flower.handlers.clear()  # Flower's messages would disturb the progress bar
    flower.propagate = True
    nodes = config.clients.total
    with simulated_devices(config) as environment:
        if isinstance(config.runtime, SimulationRuntimeConfig):
            server_app = serve(Rounds(config, folder, progress))
            run_simulation(server_app, nodes, config.runtime, environment)
        else:
            with fitting_threads(Workload(config).parameters), kept_memory():
                rounds = Rounds(config, folder, progress)
                if isinstance(config.runtime, CohortRuntimeConfig):
                    rounds.run(BatchedGrid(client_app, config, rounds.workload), known_roster())
                else:
                    grid = LocalGrid(client_app, nodes, config.clients.timeout)
                    rounds.run(grid, known_roster())


def _run_elsewhere(config: Config, folder: Path, progress: Display) -> None:
    """Run the ServerApp beside a SuperLink, where it composes the same overrides."""
    from fedsketch.runtime.deployment import run_deployment
    from fedsketch.runtime.processes import run_processes

    play = run_processes if config.runtime.name == "processes" else run_deployment
    play(config, RunFolder(folder).read_overrides(), folder, progress)


def _hydra_main() -> None:
    """Run Hydra's own command line. Each job of a sweep is a separate run."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    from fedsketch.conf.nearest_value import register_resolvers
    from fedsketch.conf.search_path import search_installed_packages

    search_installed_packages()
    register_resolvers()
    sys.argv[1:] = for_hydra(sys.argv[1:])

    @hydra.main(version_base="1.3", config_path=str(FOLDER), config_name="config")
    def job(composed: DictConfig) -> None:
        hydra_config = HydraConfig.get()
        sweep = hydra_config.mode is RunMode.MULTIRUN
        try:
            with one_sentence(where=f"job {hydra_config.job.num}: " if sweep else ""):
                config, folder = load(composed), Path(hydra_config.runtime.output_dir)
                with RunFolder(folder).claimed(hydra_config.overrides.task):
                    run(config, folder)
        except SystemExit as ended:
            if not sweep or ended.code != 1:
                raise
            failed.append(hydra_config.job.num)  # go on with the other jobs of the sweep

    failed: list[int] = []

    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints errors itself, on many lines
    with one_sentence():
        try:
            job()
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(composition_sentence(error)) from error
    if failed:
        sys.exit(1)


@contextmanager
def one_sentence(code: int = 1, where: str = "") -> Iterator[None]:
    """Turn errors that a user can correct into one sentence and this exit code. All others keep their traceback."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        how = str(interrupt) or "no run had begun."
        print(f"fedsketch: interrupted; {how}", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        _refuse(
            f"{where}{error.filename or 'A file of the run'} cannot be written ({error.strerror}): make room on the "
            "disk, then resume the run, or set hydra.run.dir to another place.",
            code,
        )
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        _refuse(f"{where}{sentence}", code)


def _refuse(sentence: str, code: int) -> NoReturn:
    print(f"fedsketch: {sentence}", file=sys.stderr)
    sys.exit(code)
