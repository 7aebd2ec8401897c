"""Random bytes, and honest messages with a few bytes changed, for every decoder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from fedsketch.secagg.errors import Aborted, SecAggError
from fedsketch.secagg.server_session import RoundStage
from fedsketch.secagg.two_trips import messages
from fedsketch.secagg.two_trips.messages import SharingRequest
from fedsketch.secagg.two_trips.settings import Cohort, Terms
from fedsketch.secagg.two_trips.state import Memory
from tests.secagg.two_trips.fleet import Fleet

ROUNDS = 300


def altered(data: bytes, rng: np.random.Generator) -> bytes:
    """A message that was cut, extended, or changed in a few places; or random bytes."""
    kind = rng.integers(4)
    if kind == 0:
        return bytes(data[: rng.integers(len(data) + 1)])
    if kind == 1:
        return data + rng.bytes(int(rng.integers(1, 9)))
    if kind == 2:
        return data[:1] + rng.bytes(int(rng.integers(0, 200)))
    changed = bytearray(data)
    for place in rng.integers(0, len(data), size=int(rng.integers(1, 4))):
        changed[place] ^= int(rng.integers(1, 256))
    return bytes(changed)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    fleet = Fleet(10, drops=2, losses=1)
    fleet.run()
    fleet.run(until=RoundStage.ANSWER)
    return fleet


def test_devices_raise_nothing_else_and_keep_their_state(fleet: Fleet) -> None:
    rng = np.random.default_rng(0)
    node = fleet.ids[0]
    state = fleet.states[node]
    requests = {step: fleet.requests[step, node] for step in (RoundStage.HELLO, RoundStage.MASK)}
    requests[RoundStage.ANSWER] = b"\x12" + requests[RoundStage.MASK][1:20]
    for step, request in requests.items():
        for _ in range(ROUNDS):
            fleet.states[node] = state
            bad = altered(request, rng)
            if bad != request:
                try:
                    fleet.answer(step, node, bad)
                except SecAggError:
                    assert fleet.states[node] == state


def test_the_server_loses_the_node_and_nothing_else(fleet: Fleet) -> None:
    rng = np.random.default_rng(1)
    for step in (RoundStage.HELLO, RoundStage.MASK, RoundStage.ANSWER):
        for _ in range(40):
            run = Fleet(6, drops=1, losses=1)
            session = run.begin()
            while session.stage < step:
                run.step(session)
            node = run.ids[2]
            for other, request in session.requests().items():
                reply = run.answer(step, other, request)
                session.receive(other, altered(reply, rng) if other == node else reply)
            with suppress(Aborted):  # an answer that is well formed, and wrong
                session.close()


@pytest.mark.parametrize(
    "decode", [SharingRequest.decode, Cohort.decode, Terms.decode, Memory.decode]
)
def test_decoding_accepts_only_what_encoding_makes(
    decode: Callable[[bytes], Any], fleet: Fleet
) -> None:
    rng = np.random.default_rng(2)
    fresh = Fleet(10)
    fresh.run()
    first = SharingRequest.decode(fresh.requests[RoundStage.MASK, fresh.ids[0]])
    valid = {
        SharingRequest.decode: first.encode(),
        Cohort.decode: first.cohort,
        Terms.decode: first.terms,
        Memory.decode: fleet.states[fleet.ids[0]],
    }[decode]
    again = decode(valid)
    assert (again.encode() if hasattr(again, "encode") else again.encoded) == valid
    for _ in range(ROUNDS):
        bad = altered(valid, rng)
        try:
            decoded = decode(bad)
        except SecAggError:
            continue
        if decode != Memory.decode:
            encoded = decoded.encode() if hasattr(decoded, "encode") else decoded.encoded
            assert encoded == bad


def test_a_number_at_the_modulus_is_malformed(fleet: Fleet) -> None:
    run = Fleet(6, bits=16)
    session = run.begin()
    run.step(session)
    node = run.ids[0]
    reply = bytearray(run.answer(RoundStage.MASK, node, session.requests()[node]))
    reply[messages.NAME_BYTES + 1 : messages.NAME_BYTES + 3] = (65521).to_bytes(2, "little")
    session.receive(node, bytes(reply))
    assert "not below the modulus" in session.lost[node]
