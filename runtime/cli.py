"""The command `fedsketch`: compose, check, run; or resume. Whatever a user can get wrong ends in one sentence and exit code 1."""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Before flwr is imported, here and in every process that it starts.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from conf import Config, ConfigError, load
from conf.compose import FOLDER, compose_with_folder, composition_sentence
from runtime.resume import resumed_run


def main() -> None:
    """Entry point of the console script."""
    arguments = sys.argv[1:]
    if any(argument.startswith("-") for argument in arguments):
        _hydra_main()  # sweeps (-m), --help, --cfg job, ...
        return
    with one_sentence():
        resume = [a.removeprefix("resume=") for a in arguments if a.startswith("resume=")]
        overrides = [a for a in arguments if not a.startswith("resume=")]
        if resume:
            run(*resumed_run(Path(resume[-1]), overrides))
        else:
            config, folder = compose_with_folder(overrides)
            claim(folder, overrides)
            run(config, folder)


def run(config: Config, folder: Path) -> None:
    """Play a run in its runtime, into its folder."""
    from rich.console import Console

    from client.app import app as client_app
    from runtime.environment import simulated_devices
    from runtime.local import run_local
    from runtime.progress import ConsoleProgress
    from runtime.simulation import run_simulation
    from server.app import serve
    from server.rounds import Rounds

    _log_into(folder)
    with ConsoleProgress(Console()) as progress, simulated_devices(config) as environment:
        server_app = serve(Rounds(config, folder, progress))
        if config.runtime.name == "local":
            run_local(server_app, client_app, config.clients.total)
        else:
            run_simulation(
                server_app, client_app, config.clients.total, config.runtime, environment
            )


def _hydra_main() -> None:
    """Hydra's own command line; each job of a sweep is a run of its own."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    @hydra.main(version_base="1.3", config_path=str(FOLDER), config_name="config")
    def job(composed: DictConfig) -> None:
        hydra_config = HydraConfig.get()
        with one_sentence():
            config, folder = load(composed), Path(hydra_config.runtime.output_dir)
            claim(folder, hydra_config.overrides.task)
            run(config, folder)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # or Hydra prints its errors itself, on many lines
    with one_sentence():
        try:
            job()
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(composition_sentence(error)) from error


@contextmanager
def one_sentence() -> Iterator[None]:
    """Errors that a user can mend, as a sentence; all others keep their traceback."""
    from privacy.calibration import ImpossibleBudgetError
    from privacy.costs import UnsupportedReleaseError
    from privacy.encoding_plan import RingTooSmallError
    from runtime.simulation import ClusterError
    from secagg import SettingsError
    from server.checkpoint import CheckpointError
    from strategies.cohort import TooFewClients
    from tasks.errors import TaskError

    try:
        yield
    except (
        ConfigError,
        TaskError,
        ImpossibleBudgetError,
        RingTooSmallError,
        UnsupportedReleaseError,
        CheckpointError,
        ClusterError,
        SettingsError,
        TooFewClients,
    ) as error:
        print(f"fedsketch: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(
            "fedsketch: interrupted; go on with `fedsketch resume=<its folder>`.", file=sys.stderr
        )
        sys.exit(130)


def claim(folder: Path, overrides: Sequence[str]) -> None:
    """Make the folder of a new run, and note what it was started with."""
    if (folder / "config.yaml").exists():
        raise ConfigError(
            f"{folder} holds a run already: go on with resume={folder}, or set another hydra.run.dir."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "overrides.txt").write_text("".join(f"{override}\n" for override in overrides))
    except OSError as error:
        raise ConfigError(
            f"The output folder {folder} cannot be written ({error.strerror}): set hydra.run.dir to one that can."
        ) from error


def _log_into(folder: Path) -> None:
    """From here on everything logged goes into the folder's run.log, not over the progress bar."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / "run.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, logging.FileHandler)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    flower = logging.getLogger("flwr")
    flower.handlers.clear()
    flower.propagate = True
