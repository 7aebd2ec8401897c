"""What a hostile server has from real devices, as linear equations.

Whoever has a key knows the numbers that follow from it. All other numbers that devices draw are unknowns, one for each
different input of the pseudo-random function: they come from the calls that the devices really make. Where code
forgets something in that input, two unknowns are one, and the equations say more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fedsketch.secagg.server_session import RoundStage
from fedsketch.secagg.two_trips import device, messages, stream
from fedsketch.secagg.two_trips.keys import KEY_BYTES
from fedsketch.secagg.two_trips.shape import Shape
from fedsketch.secagg.two_trips.state import Memory, OpenRound
from tests.secagg.two_trips.finite_fields import Numbers, Prime, known_about, reduced, vandermonde
from tests.secagg.two_trips.fleet import Fleet


def open_round(fleet: Fleet, node: int) -> OpenRound:
    """The round that a device has open."""
    opened = Memory.decode(fleet.states[node]).open
    assert opened is not None
    return opened


def interpolation(shape: Shape) -> Numbers:
    """The values at the published and secret points (rows), of those at the holders' points."""
    q, end = shape.modulus, shape.n + shape.publics + shape.secrets
    powers = vandermonde(Prime(q), np.arange(end), shape.n)
    values: Numbers = reduced(Prime(q), powers[None])[0][:, shape.n :].T
    return values


@dataclass(frozen=True)
class Equation:
    """A sum of drawn numbers, and perhaps one number of a device's vector, that the server has."""

    drawn: dict[bytes, int]
    place: tuple[int, int] | None = None  # the device, and the place in its vector


@dataclass
class Transcript:
    """All that devices of a round have sent, for the first polynomial of each."""

    fleet: Fleet
    monkeypatch: pytest.MonkeyPatch
    equations: list[Equation] = field(default_factory=list)
    masked: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    keys: dict[int, dict[int, bytes]] = field(default_factory=dict)
    calls: list[tuple[Sequence[bytes], Numbers]] = field(default_factory=list)

    def __post_init__(self) -> None:
        def recording(inputs: Sequence[bytes], count: int, bits: int) -> Any:
            drawn = stream.numbers(inputs, count, bits)
            self.calls.append((list(inputs), drawn[:, 0].astype(np.int64)))
            return drawn

        self.monkeypatch.setattr(device, "numbers", recording)

    def mask(self, node: int, request: bytes) -> None:
        """Let a device train. The server has its masked vector and published numbers."""
        self.calls.clear()
        reply = self.fleet.answer(RoundStage.MASK, node, request)
        [(inputs, drawn)] = self.calls
        opened = open_round(self.fleet, node)
        shape = opened.settings.shape
        masked, published = messages.read_sharing_reply(opened.settings, reply)
        matrix = interpolation(shape)
        values = (matrix * drawn).sum(axis=1) % shape.modulus
        vector = self.fleet.vectors[node].astype(np.int64)[: shape.secrets]
        # The equations are those of the bytes that left.
        assert published[:, 0].tolist() == values[: shape.publics].tolist()
        secrets = (values[shape.publics :] + vector) % shape.modulus
        assert masked[: shape.secrets].tolist() == secrets.tolist()
        for place, row in enumerate(matrix, -shape.publics):
            where = None if place < 0 else (node, place)
            self.equations.append(_equation(inputs, row.tolist(), where))
        self.masked[node] = opened.settings.digest, opened.broadcast
        peers = Memory.decode(self.fleet.states[node]).epochs[opened.settings.epoch].peers
        self.keys[node] = {peer: key for peer, (_, key) in peers.items()}

    def ask(self, node: int, survivors: Iterable[int]) -> None:
        """Show a device a list (positions in its cohort). The server has its sum."""
        settings = open_round(self.fleet, node).settings
        self.calls.clear()
        request = messages.answer_request(settings, survivors)
        reply = self.fleet.answer(RoundStage.ANSWER, node, request)
        if not self.calls:  # the answer that it gave before
            return
        [(inputs, drawn)] = self.calls
        total = messages.read_answer_reply(settings, reply)[0]
        assert total == drawn.sum() % settings.modulus
        self.equations.append(_equation(inputs, [1] * len(inputs)))

    def learnt(self, colluders: Sequence[int], shape: Shape) -> Numbers:
        """The combinations of honest devices' numbers that follow, as `judge` takes them."""
        keys = {
            key
            for node, shared in self.keys.items()
            for peer, key in shared.items()
            if {node, peer} & set(colluders)
        }
        honest = [node for node in self.fleet.ids if node not in colluders]
        places = [(node, place) for node in honest for place in range(shape.secrets)]
        drawn = {one for equation in self.equations for one in equation.drawn}
        unknown = sorted(one for one in drawn if one[:KEY_BYTES] not in keys)
        columns = {one: column for column, one in enumerate([*unknown, *places])}
        matrix = np.zeros((1, len(self.equations), len(columns)), np.int64)
        for row, equation in zip(matrix[0], self.equations, strict=True):
            for what, coefficient in equation.drawn.items():
                if what in columns:
                    row[columns[what]] += coefficient
            if equation.place in columns:
                row[columns[equation.place]] = 1
        width = len(unknown)
        found = known_about(Prime(shape.modulus), matrix[:, :, :width], matrix[:, :, width:])
        return found.reshape(1, -1, len(honest), shape.secrets)


def _equation(
    inputs: Sequence[bytes], coefficients: Sequence[int], place: tuple[int, int] | None = None
) -> Equation:
    drawn: dict[bytes, int] = {}
    for one, coefficient in zip(inputs, coefficients, strict=True):
        drawn[one] = drawn.get(one, 0) + coefficient
    return Equation(drawn, place)
