"""Devices in memory that sum in two trips."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedsketch.secagg.codec import VectorFormat
from fedsketch.secagg.errors import SecAggError
from fedsketch.secagg.guard import SimulationGuard, SimulationRoster
from fedsketch.secagg.names import ProtocolName
from fedsketch.secagg.node import Node
from fedsketch.secagg.options import SecAggOptions
from fedsketch.secagg.packing import Ring, ring_dtype
from fedsketch.secagg.server_session import Conversation, Numbers, RoundStage
from fedsketch.secagg.two_trips import device
from fedsketch.secagg.two_trips.field import prime_below
from fedsketch.secagg.two_trips.server_session import TwoTripsSession
from fedsketch.secagg.two_trips.sessions import TwoTripsSessions

RUN = 7
MODEL = b"\x11" * 32
Drops = Mapping[RoundStage, Iterable[int]]


def nodes_of(n: int) -> list[int]:
    """The ids of n nodes."""
    return [1000 + 7 * place for place in range(n)]


class Fleet:
    """Devices with their states; `requests` and `replies` keep what was sent last."""

    def __init__(self, n: int, *, dim: int = 5, bits: int = 20, **options: Any) -> None:
        options = {"drops": 0, "losses": 0, **options}
        self.options = SecAggOptions(protocol=ProtocolName.TWO_TRIPS, **options)
        self.vector = VectorFormat(dim, bits, {"clip": 1.0, "name": "test"})
        self.ids = nodes_of(n)
        self.rounds = TwoTripsSessions(self.options, SimulationRoster())
        self.nodes: dict[int, Node] = {}
        self.states: dict[int, bytes] = {}
        self.vectors: dict[int, Ring] = {}
        self.requests: dict[tuple[RoundStage, int], bytes] = {}
        self.replies: dict[tuple[RoundStage, int], bytes] = {}
        self.model: Callable[[int], bytes] = lambda node: MODEL
        self.numbers = Numbers(1)
        for node in self.ids:
            self.join(node)

    def join(self, node: int) -> None:
        """A device, as it is when its node starts."""
        self.nodes[node] = Node(node, RUN, SimulationGuard(node))
        self.states[node] = b""

    def draw(self, seed: int) -> None:
        """Give every device a new vector."""
        rng = np.random.default_rng(seed)
        bits = self.vector.bits
        self.vectors = {
            i: rng.integers(0, prime_below(bits), self.vector.dim).astype(ring_dtype(bits))
            for i in self.ids
        }

    def begin(self, cohort: Sequence[int] | None = None) -> TwoTripsSession:
        """The next round."""
        self.draw(self.numbers.next)
        return self.rounds.begin(RUN, self.numbers, cohort or self.ids, self.vector, MODEL)

    def answer(self, step: RoundStage, node: int, request: bytes) -> bytes:
        """One device takes one step, as the mod does it."""
        me = self.nodes[node]
        self.states[node] = device.cleaned(me, self.states[node])
        if step is RoundStage.MASK:
            ticket = device.open_mask(me, self.states[node], request, self.model(node))
            self.states[node] = device.spend(me, ticket)
            self.states[node], reply = device.mask(ticket, self.vectors[node])
        else:
            take = device.hello if step is RoundStage.HELLO else device.answer
            self.states[node], reply = take(me, self.states[node], request)
        return reply

    def step(self, exchange: Conversation, silent: Iterable[int] = ()) -> None:
        """All devices but the silent ones answer the current step, and the step is closed."""
        step, quiet = exchange.stage, set(silent)
        for node, request in exchange.requests().items():
            if node in quiet:
                continue
            self.requests[step, node] = request
            try:
                self.replies[step, node] = reply = self.answer(step, node, request)
            except SecAggError as error:
                exchange.lose(node, str(error))
                continue
            exchange.receive(node, reply)
        exchange.close()

    def run(
        self,
        drops: Drops | None = None,
        *,
        cohort: Sequence[int] | None = None,
        expected: Sequence[int] | None = None,
        until: RoundStage = RoundStage.DONE,
    ) -> TwoTripsSession:
        """One round up to the given step; `drops` are silent from the named step on."""
        session, gone = self.begin(cohort), set[int]()
        while session.stage < until:
            gone |= {
                node
                for step, nodes in (drops or {}).items()
                if step <= session.stage
                for node in nodes
            }
            ahead = self.rounds.ahead(session, self.numbers, expected, self.vector)
            self.step(session, gone)
            if ahead is not None:
                self.step(ahead, gone)
        return session

    def expected(self, survivors: Iterable[int]) -> list[int]:
        """The plain sum, computed with Python's integers."""
        modulus = prime_below(self.vector.bits)
        columns = zip(*(self.vectors[i].tolist() for i in survivors), strict=True)
        return [sum(column) % modulus for column in columns]


def check(fleet: Fleet, session: TwoTripsSession, included: Iterable[int]) -> None:
    """The sums are exact, and over those who are expected in them."""
    assert session.sums
    for result in session.sums:
        assert result.total.tolist() == fleet.expected(result.survivors)
    assert {node for result in session.sums for node in result.survivors} == set(included)
