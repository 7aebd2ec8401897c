"""A fleet of devices in memory, and a Flower Grid that runs a ClientApp in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.clientapp import ClientApp

from fedsketch.secagg.codec import VectorFormat
from fedsketch.secagg.errors import SecAggError
from fedsketch.secagg.guard import SimulationGuard, SimulationRoster
from fedsketch.secagg.node import Node
from fedsketch.secagg.options import SecAggOptions
from fedsketch.secagg.packing import Ring, ring_dtype
from fedsketch.secagg.pairwise.server_session import PairwiseSession
from fedsketch.secagg.pairwise.settings import PairwiseSettings
from fedsketch.secagg.server_session import RoundStage
from tests.secagg.in_process_grid import RUN, InProcessGrid, begin
from tests.secagg.protocol import take_step

MODEL = b"\x11" * 32


class Fleet:
    """Devices with their states and vectors; `requests` and `replies` keep what was sent."""

    def __init__(self, settings: PairwiseSettings, seed: int = 0) -> None:
        self.settings = settings
        self.nodes = {i: Node(i, settings.run, SimulationGuard(i)) for i in settings.cohort}
        self.states = dict.fromkeys(settings.cohort, b"")
        rng = np.random.default_rng(seed)
        self.vectors: dict[int, Ring] = {
            i: rng.integers(
                0, 2**settings.bits, settings.dim, dtype=np.uint64, endpoint=False
            ).astype(ring_dtype(settings.bits))
            if settings.bits < 64
            else rng.integers(0, 2**64 - 1, settings.dim, dtype=np.uint64, endpoint=True)
            for i in settings.cohort
        }
        self.requests: dict[tuple[RoundStage, int], bytes] = {}
        self.replies: dict[tuple[RoundStage, int], bytes] = {}

    def answer(self, step: RoundStage, node: int, request: bytes, model: bytes = MODEL) -> bytes:
        """One device takes one step."""
        me, vector = self.nodes[node], self.vectors[node]
        return take_step(step, me, self.states, request, vector, model)

    def stage(self, session: PairwiseSession, silent: Iterable[int] = ()) -> None:
        """All devices but the silent ones answer the current stage, and the stage is closed."""
        step, quiet = session.stage, set(silent)
        for node, request in session.requests().items():
            if node in quiet:
                continue
            self.requests[step, node] = request
            try:
                self.replies[step, node] = reply = self.answer(step, node, request)
            except SecAggError as error:
                session.lose(node, str(error))
                continue
            session.receive(node, reply)
        session.close()

    def run(
        self,
        drops: Mapping[RoundStage, Iterable[int]] | None = None,
        until: RoundStage = RoundStage.DONE,
    ) -> PairwiseSession:
        """A round up to the given stage; `drops` are silent from the named stage on."""
        session = PairwiseSession(self.settings, SimulationRoster())
        session.bind(MODEL)
        gone: set[int] = set()
        while session.stage < until:
            gone |= set((drops or {}).get(session.stage, ()))
            self.stage(session, gone)
        return session

    def expected(self, survivors: Iterable[int]) -> Ring:
        """The plain sum modulo 2^bits, computed with Python's integers."""
        modulus = 1 << self.settings.bits
        columns = zip(*(self.vectors[i].tolist() for i in survivors), strict=True)
        return np.array([sum(c) % modulus for c in columns], dtype=ring_dtype(self.settings.bits))


def make_settings(
    n: int, *, dim: int = 5, bits: int = 32, round: int = 1, **plan: Any
) -> PairwiseSettings:
    nodes = [1000 + 7 * i for i in range(n)]
    vector = VectorFormat(dim, bits, {"clip": 1.0, "noise": 12, "name": "test"})
    return PairwiseSettings.proposed(SecAggOptions(**plan), RUN, round, nodes, vector, MODEL)


@pytest.fixture(scope="session")
def settings_of() -> Callable[..., PairwiseSettings]:
    return make_settings


@pytest.fixture(scope="session")
def fleet() -> Callable[..., Fleet]:
    def build(n: int, seed: int = 0, **options: Any) -> Fleet:
        return Fleet(make_settings(n, **options), seed)

    return build


@pytest.fixture(scope="session")
def model_hash() -> bytes:
    return MODEL


@pytest.fixture
def in_process_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[ClientApp, Iterable[int]], InProcessGrid]:
    begin(monkeypatch.setattr)
    return InProcessGrid
