"""Checkpoints: everything that the next round depends on, written completely or not at all."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from fedsketch.conf import from_json, to_json
from fedsketch.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import torch

KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round. Cohorts are a function of `cohort_key` and the round, so no generator has to be saved.
    `accounts` holds what the first `attempts` recorded attempts have cost."""

    config: str
    round: int
    model: torch.Tensor
    strategy: dict[str, Any]
    accounts: str
    cohort_key: int
    seconds: float
    traffic: tuple[float, float]
    attempts: int
    validation: dict[str, Any] = field(default_factory=dict)
    evaluations: str = ""  # accounts of evaluations on devices, if there are any

    def save(self, folder: Path) -> None:
        """Write into `folder`, readable by the owner only, because the cohorts of a private run are secret."""
        import torch

        folder.mkdir(exist_ok=True)
        path = folder / f"round-{self.round:09d}.pt"
        unfinished = path.with_suffix(".unfinished")
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            torch.save(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        for old in sorted(folder.glob("round-*.pt"))[:-KEEP]:
            old.unlink()

    @staticmethod
    def load_latest(folder: Path, config: str) -> Checkpoint | None:
        """Return the newest checkpoint of a run with this configuration, or None if there is none yet."""
        paths = sorted(folder.glob("round-*.pt"))
        if not paths:
            return None
        import torch

        try:
            checkpoint = Checkpoint(**torch.load(paths[-1], weights_only=True, map_location="cpu"))
        except (UnpicklingError, RuntimeError, EOFError, TypeError) as error:
            raise CheckpointError(
                f"{paths[-1]} is damaged: delete it, and the run is resumed from the checkpoint before it."
            ) from error
        if _in_present_words(checkpoint.config) != config:
            raise CheckpointError(
                f"{paths[-1]} was made with another configuration: resume its run with its own configuration, or "
                "start a new run."
            )
        return checkpoint


def _in_present_words(config: str) -> str:
    """Return the canonical text of a configuration that an earlier version wrote: keys that it did not know have their
    defaults."""
    try:
        return to_json(from_json(config))
    except ConfigError:
        return config
