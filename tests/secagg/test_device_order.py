"""A server that repeats, reorders or exchanges what it sends: steps happen once, in order, about one broadcast."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fedsketch.secagg.errors import Refusal
from fedsketch.secagg.guard import SimulationGuard
from fedsketch.secagg.node import Node
from fedsketch.secagg.pairwise import device
from fedsketch.secagg.pairwise.settings import PairwiseSettings
from fedsketch.secagg.server_session import RoundStage

Build = Callable[..., Any]
Make = Callable[..., PairwiseSettings]


# Replays.


def test_a_replayed_or_older_round_is_refused(fleet: Build) -> None:
    devices = fleet(3, round=5)
    devices.run()
    node = devices.settings.cohort[0]
    for round_ in (5, 4, 0):
        again = replace(devices.settings, round=round_, nonce=os.urandom(16))
        with pytest.raises(Refusal, match="seen before"):
            devices.answer(RoundStage.ADVERTISE, node, again.encoded)
    devices.answer(RoundStage.ADVERTISE, node, replace(devices.settings, round=6).encoded)


def test_a_round_of_another_run_is_refused(fleet: Build) -> None:
    devices = fleet(3)
    with pytest.raises(Refusal, match="belongs to run 99"):
        devices.answer(
            RoundStage.ADVERTISE,
            devices.settings.cohort[0],
            replace(devices.settings, run=99).encoded,
        )


def test_a_device_outside_the_cohort_refuses(settings_of: Make) -> None:
    settings = settings_of(3)
    with pytest.raises(Refusal, match="not in the cohort"):
        device.advertise(Node(5, settings.run, SimulationGuard(5)), b"", settings.encoded)


@pytest.mark.parametrize(
    "step", [RoundStage.SHARE, RoundStage.MASK, RoundStage.SIGN, RoundStage.UNMASK]
)
def test_every_step_happens_once_and_in_order(step: RoundStage, fleet: Build) -> None:
    devices = fleet(4)
    devices.run()
    node = devices.settings.cohort[0]
    fresh = fleet(4)
    fresh.__init__(devices.settings)
    for early in (RoundStage.SHARE, RoundStage.MASK, RoundStage.SIGN, RoundStage.UNMASK):
        with pytest.raises(Refusal):
            fresh.answer(early, node, devices.requests[early, node])
    running = fleet(4)
    session = running.run(until=step)
    request = session.requests()[node]
    running.answer(step, node, request)
    with pytest.raises(Refusal, match=r"out of order or repeated|has ended"):
        running.answer(step, node, request)


def test_a_second_vector_is_refused(fleet: Build, model_hash: bytes) -> None:
    """Two vectors under one mask would give their difference away."""
    devices = fleet(4)
    session = devices.run(until=RoundStage.SIGN)
    assert session.stage is RoundStage.SIGN
    node = devices.settings.cohort[0]
    with pytest.raises(Refusal, match="out of order or repeated"):
        device.open_mask(
            devices.nodes[node],
            devices.states[node],
            devices.requests[RoundStage.MASK, node],
            model_hash,
        )


# Another broadcast than hashed.


def test_another_broadcast_than_announced_is_refused(fleet: Build) -> None:
    devices = fleet(4)
    session = devices.run(until=RoundStage.MASK)
    node, request = next(iter(session.requests().items()))
    with pytest.raises(Refusal, match="hash differs"):
        devices.answer(RoundStage.MASK, node, request, model=b"\x22" * 32)


def test_another_model_per_client_gives_garbage_and_no_quorum(fleet: Build) -> None:
    """Keys exchanged before the model was known: a victim is shown a model of its own."""
    devices = fleet(4)
    devices.__init__(replace(devices.settings, broadcast=b""))
    settings = devices.settings
    session = devices.run(until=RoundStage.MASK)
    victim = settings.cohort[2]
    for node, request in session.requests().items():
        model = b"\x22" * 32 if node == victim else b"\x11" * 32
        session.receive(node, devices.answer(RoundStage.MASK, node, request, model))
    session.close()
    for node, request in session.requests().items():
        session.receive(node, devices.answer(RoundStage.SIGN, node, request))
    assert "does not verify" in session.lost[victim]
    signed = session._signatures
    assert len(signed) == 3
    session.close()
    # The three others have a quorum, so they may go on: the sum is masked by the victim's pairs.
    devices.stage(session)
    expected = devices.expected(settings.cohort)
    assert (session.sums[0].total != expected).mean() > 0.9
