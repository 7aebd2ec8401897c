"""Laws of release other than noise of devices fit the seam: a class, a line in the list of kinds, and nothing else
changes.

One that is still to come, in small: noise of a trusted server.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Gaussian,
    NoSampling,
    Release,
    SecretDraw,
    Unit,
)
from fedsketch.privacy.mechanisms import records
from fedsketch.privacy.mechanisms.clipping import clip_rows
from fedsketch.privacy.mechanisms.mechanism import Mechanism, Upload
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.strategies.dp_fedavg import DPFedAvg
from fedsketch.strategies.noise.device import DeviceNoise

Play = Callable[..., Any]
ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class _Toy(Mechanism):
    """Clip, and noise somewhere else than in the upload."""

    clip: float

    @property
    def bound(self) -> float:
        return self.clip

    def protect(self, rows: torch.Tensor, stream: Stream, round: int) -> Upload:
        return Upload(clip_rows(rows, self.clip).sum(dim=0).numpy())

    def total(self, vectors: Sequence[NDArray[Any]], round: int) -> NDArray[np.float64]:
        return np.sum(vectors, axis=0, dtype=np.float64)

    @property
    def variance_per_device(self) -> float:
        return 0.0

    def noise_std(self, variance: float) -> float:
        return self.clip * math.sqrt(variance)

    def release_to(
        self, variance: float, protected: Unit, sampling: SecretDraw, adversary: Adversary
    ) -> Release:
        law = Gaussian(self.noise_multiplier(variance, protected))
        return Release(law, sampling, Adjacency.ZERO_OUT, protected, adversary)

    def noise_multiplier(self, variance: float, protected: Unit) -> float:
        return math.sqrt(variance) / self.weight(protected)

    def check(self) -> None:
        """Nothing to check in a toy."""


class _TrustedServer(_Toy):
    """The server adds the noise, so it sees everything, and only those who see models have a guarantee."""

    kind: ClassVar[str] = "trusted_server"

    def noise_alone(self, dim: int, variance: float, stream: Stream) -> NDArray[np.float64]:
        return self.noise_std(variance) * stream.gaussian(dim)


@dataclass(frozen=True)
class _ServerNoise(DeviceNoise):
    def mechanism(self, cohort: int, dim: int | None = None) -> Mechanism:
        return _TrustedServer(clip=0.5)

    def variance(self, cohort: int, clients: int) -> float:
        return 4.0

    def releases(self, cohort: int, clients: int) -> dict[str, Release]:
        return {"model": self.worst()}

    def worst(self) -> Release:
        return self.mechanism(1).release_to(4.0, Unit.CLIENT, NoSampling(), Adversary.MODEL)


class _TrustedStrategy(DPFedAvg):
    def plan_noise(self) -> DeviceNoise:
        return _ServerNoise(self.config, self.model.size, 1, 0.5, 2.0)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {**records._KINDS, _TrustedServer.kind: _TrustedServer}
    monkeypatch.setattr(records, "_KINDS", kinds)


def _epsilon(multiplier: float) -> float:
    accountant = Accountant(1e-5)
    law = Gaussian(multiplier)
    spent = Release(law, NoSampling(), Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.MODEL)
    accountant.record(spent, ROUNDS)
    return accountant.epsilon().epsilon


def test_noise_of_a_trusted_server_runs_and_promises_nothing_about_the_server(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr("fedsketch.strategies.dp_fedavg.SERVER", _TrustedStrategy)
    monkeypatch.setattr(
        _TrustedStrategy, "update", lambda self, server_round, aggregate: seen.append(aggregate.sum)
    )
    played = play(f"rounds={ROUNDS}", "privacy.epsilon=null", "privacy.noise_multiplier=2")
    assert played.rows[-1]["epsilon"] == {"model": pytest.approx(_epsilon(2.0))}
    # The model stays, so two rounds differ by two noises of deviation 1 in 21 numbers each; 5 sigma of a chi-square.
    difference = (seen[0] - seen[1]).double() / math.sqrt(2)
    assert abs(float(difference.square().mean()) - 1.0) < 5 * math.sqrt(2 / 21)


def test_a_budget_binds_a_strategy_of_any_law(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsketch.strategies.dp_fedavg.SERVER", _TrustedStrategy)
    budget = _epsilon(2.0) * 1.0001
    played = play("rounds=10", f"privacy.epsilon={budget}", "privacy.noise_multiplier=2")
    assert len(played.rows) == ROUNDS
    assert "another would exceed" in played.summary["stopped"]
