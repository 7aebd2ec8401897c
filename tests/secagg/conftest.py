"""A fleet of devices in memory, and a Flower Grid that runs a ClientApp in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedsketch.secagg.codec import VectorFormat
from fedsketch.secagg.coordinator import Coordinator, Step
from fedsketch.secagg.device import Node
from fedsketch.secagg.errors import SecAggError
from fedsketch.secagg.guard import SimulationGuard, SimulationRoster
from fedsketch.secagg.options import SecAggOptions
from fedsketch.secagg.packing import Ring, ring_dtype
from fedsketch.secagg.settings import RoundSettings
from tests.secagg.protocol import take_step

RUN = 7
MODEL = b"\x11" * 32


class Fleet:
    """Devices with their states and vectors; `requests` and `replies` keep what was sent."""

    def __init__(self, settings: RoundSettings, seed: int = 0) -> None:
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
        self.requests: dict[tuple[Step, int], bytes] = {}
        self.replies: dict[tuple[Step, int], bytes] = {}

    def answer(self, step: Step, node: int, request: bytes, model: bytes = MODEL) -> bytes:
        """One device takes one step."""
        me, vector = self.nodes[node], self.vectors[node]
        return take_step(step, me, self.states, request, vector, model)

    def stage(self, coordinator: Coordinator, silent: Iterable[int] = ()) -> None:
        """All devices but the silent ones answer the current stage, and the stage is closed."""
        step, quiet = coordinator.step, set(silent)
        for node, request in coordinator.requests().items():
            if node in quiet:
                continue
            self.requests[step, node] = request
            try:
                self.replies[step, node] = reply = self.answer(step, node, request)
            except SecAggError as error:
                coordinator.lose(node, str(error))
                continue
            coordinator.receive(node, reply)
        coordinator.close()

    def run(
        self, drops: Mapping[Step, Iterable[int]] | None = None, until: Step = Step.DONE
    ) -> Coordinator:
        """A round up to the given stage; `drops` are silent from the named stage on."""
        coordinator = Coordinator(self.settings, SimulationRoster())
        coordinator.bind(MODEL)
        gone: set[int] = set()
        while coordinator.step < until:
            gone |= set((drops or {}).get(coordinator.step, ()))
            self.stage(coordinator, gone)
        return coordinator

    def expected(self, survivors: Iterable[int]) -> Ring:
        """The plain sum modulo 2^bits, computed with Python's integers."""
        modulus = 1 << self.settings.bits
        columns = zip(*(self.vectors[i].tolist() for i in survivors), strict=True)
        return np.array([sum(c) % modulus for c in columns], dtype=ring_dtype(self.settings.bits))


def make_settings(
    n: int, *, dim: int = 5, bits: int = 32, round: int = 1, **plan: Any
) -> RoundSettings:
    nodes = [1000 + 7 * i for i in range(n)]
    vector = VectorFormat(dim, bits, {"clip": 1.0, "noise": 12, "name": "test"})
    return SecAggOptions(**plan).settings(RUN, round, nodes, vector, MODEL)


@pytest.fixture(scope="session")
def settings_of() -> Callable[..., RoundSettings]:
    return make_settings


@pytest.fixture(scope="session")
def fleet() -> Callable[..., Fleet]:
    def build(n: int, seed: int = 0, **options: Any) -> Fleet:
        return Fleet(make_settings(n, **options), seed)

    return build


@pytest.fixture(scope="session")
def model_hash() -> bytes:
    return MODEL


class InProcessGrid(Grid):
    """Calls a ClientApp for every message, with one lasting Context per node.

    `failing` decides which messages fail as Flower reports it; `log` keeps every message and reply.
    """

    def __init__(self, app: ClientApp, nodes: Iterable[int]) -> None:
        self.app = app
        self.contexts = {
            i: Context(RUN, i, {"partition-id": p}, RecordDict(), {}) for p, i in enumerate(nodes)
        }
        self.failing: Callable[[Message], Error | None] = lambda message: None
        self.silent: Callable[[Message], bool] = lambda message: False
        self.log: list[tuple[Message, Message]] = []
        self._waiting: dict[str, Message] = {}
        self._ids = count(1)

    @property
    def run(self) -> Any:
        return type("Run", (), {"run_id": RUN})()

    def set_run(self, run: Any) -> None:
        raise AssertionError("not used")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("not used")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            identifier = f"m{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = identifier
            ids.append(identifier)
            if not self.silent(message):
                self._waiting[identifier] = self._deliver(message)
                self.log.append((message, self._waiting[identifier]))
        return ids

    def _deliver(self, message: Message) -> Message:
        error = self.failing(message)
        if error is not None:
            reply = Message(error, reply_to=message)
            if error.code == 5:
                reply.metadata.__dict__["_src_node_id"] = 1
            return reply
        context = self.contexts[message.metadata.dst_node_id]
        copy = Message(
            RecordDict(dict(message.content)),
            message.metadata.dst_node_id,
            message.metadata.message_type,
        )
        copy.metadata.__dict__["_message_id"] = message.metadata.message_id
        return self.app(copy, context)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._waiting.pop(i) for i in message_ids if i in self._waiting]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(list(messages)))


@pytest.fixture
def in_process_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[ClientApp, Iterable[int]], InProcessGrid]:
    # Flower's Message asks the process who it is; a ServerApp's process is told by Flower itself.
    for name, value in (("_run_id", RUN), ("_node_id", 1), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)
    return InProcessGrid
