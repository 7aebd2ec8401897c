"""What one device would send, before the masks: the vector that the real workspace makes for a real guard, with the
noise or without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from numpy.typing import NDArray

from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.client.workspace import Workspace
from fedsketch.privacy.mechanisms import noisy_training
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.rounds.codec import uploaded
from fedsketch.tasks.data.folder import DATA_VARIABLE
from tests.client.fleet import Fleet
from tests.rounds import ask

EXAMPLE = ("privacy=example", "privacy.epsilon=null", "privacy.noise_multiplier=1")
FEDPCDP = (
    *("strategy=fedpcdp", "strategy.projection=none", "strategy.local.steps=1"),
    *("strategy.local.batch=1000", "privacy.epsilon=null", "privacy.noise_multiplier=1"),
)


class Asked:
    """A round that a server asks of the devices of a fleet, with a model of its choice."""

    def __init__(
        self, fleet: Fleet, model: torch.Tensor, strategy: Strategy[Any] | None = None, **data: Any
    ) -> None:
        strategy = strategy or fleet.strategy
        strategy.model.load(model)
        self.content: RecordDict = ask(strategy, 1, fleet.secure_grid)[0].content
        head = self.content.config_records["head"]
        config = json.loads(str(head["config"]))
        head["config"] = json.dumps({**config, "data": {**config["data"], **data}})
        self.guard = DeviceGuard(fleet.root / "device2")

    @property
    def mechanism(self) -> Mechanism:
        return mechanism_from_record(self.content.config_records["mechanism"])

    def vector(self, data: Path) -> NDArray[np.float64]:
        """What the device with these data sends, in real numbers; what `nothing` sends if its work fails."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(DATA_VARIABLE, str(data))
            try:
                reply = Workspace().take_part(self.content, 0, RecordDict(), self.guard)
            except Exception:  # as `secagg.mod` does: a device without data leaves noise alone
                return np.zeros(self.mechanism.ring.dim)  # type: ignore[union-attr]
            return self.mechanism.total([uploaded(reply)], 1)

    @property
    def clip(self) -> float:
        """How far one record may move the vector. What noise inside of training sends is scaled."""
        mechanism = self.mechanism
        assert mechanism.bound is not None
        if isinstance(mechanism, NoisyTraining):
            return mechanism.bound * mechanism.lr / mechanism.batch
        return mechanism.bound

    def norm(self, data: Path) -> float:
        """The norm of the vector of a device, in clips."""
        return float(np.linalg.norm(self.vector(data))) / self.clip

    def clips(self, one: Path, other: Path) -> float:
        """How many clips apart the vectors of two devices are, without their noise."""
        with without_noise():
            return float(np.linalg.norm(self.vector(one) - self.vector(other))) / self.clip


@contextmanager
def without_noise() -> Iterator[None]:
    """Every mechanism adds up and rounds, and adds no noise. All examples are drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            SkellamRing, "_noise", lambda self, clients, stream: np.zeros(self.dim, np.int64)
        )
        patch.setattr(noisy_training, "add_gaussian", lambda total, deviation, stream: total)
        yield
