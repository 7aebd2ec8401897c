"""Runs on real devices: submitted to a running SuperLink, followed, and downloaded into the user's folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedsketch.conf import Config
from fedsketch.conf.schema import DeploymentRuntimeConfig
from fedsketch.errors import ConfigError
from fedsketch.runtime.flower import Connection, connected
from fedsketch.runtime.submission import Submission, follow, submit
from fedsketch.server.run_folder import RunFolder

if TYPE_CHECKING:
    from fedsketch.server.observers.observer import Display


class Interrupted(KeyboardInterrupt):
    """The submitter was interrupted, but the run was not. The message says how to follow or stop it."""


def run_deployment(
    config: Config, overrides: Sequence[str], folder: Path, observer: Display
) -> None:
    """Submit the run, or find the run that `folder` remembers; returns when it has completed and its files are here."""
    with _connection(config) as connection:
        known = Submission.of(folder)
        if known is None or _failed(connection, known):
            name = None if known is None else known.folder
            known = submit(connection, overrides, name, send=True)
            RunFolder(folder).write_config(config)
            known.keep(folder)
        try:
            follow(connection, known.run, config, folder, observer)
        except KeyboardInterrupt as error:
            raise Interrupted(
                f"run {known.run} continues at {connection.shown}; follow it with `fedsketch resume={folder}`, "
                f"stop it with `fedsketch stop={folder}`."
            ) from error


def stop_deployment(config: Config, folder: Path) -> int:
    """Stop the run that `folder` remembers; returns its id."""
    known = Submission.of(folder)
    if known is None:
        raise ConfigError(f"{folder} is not the folder of a run that was submitted.")
    with _connection(config) as connection:
        connection.stop(known.run)
    return known.run


@contextmanager
def _connection(config: Config) -> Iterator[Connection]:
    runtime = config.runtime
    if not isinstance(runtime, DeploymentRuntimeConfig) or runtime.superlink is None:
        raise ConfigError("This run was not started with runtime=deployment.")
    certificates = runtime.root_certificates
    with connected(runtime.superlink, Path(certificates) if certificates else None) as connection:
        yield connection


def _failed(connection: Connection, known: Submission) -> bool:
    status, _ = connection.status(known.run)
    return status.startswith("finished") and status != "finished:completed"
