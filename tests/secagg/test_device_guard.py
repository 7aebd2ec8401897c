"""When a device asks its owner's guard, and what it then does not send."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fedsketch.secagg.errors import Refusal
from fedsketch.secagg.guard import SimulationGuard
from fedsketch.secagg.node import Node
from fedsketch.secagg.pairwise.settings import PairwiseSettings
from fedsketch.secagg.pairwise.state import DeviceStage, DeviceState
from fedsketch.secagg.server_session import RoundStage

Build = Callable[..., Any]


# The guard: lowered noise, tiny cohort, exhausted budget.


class StrictGuard(SimulationGuard):
    """A policy as an owner would have it, and a record of what it was asked."""

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.asked: list[str] = []
        self.budget = 1

    def admit(self, settings: PairwiseSettings) -> None:
        self.asked.append("admit")
        if settings.n < 5:
            raise Refusal("The cohort is smaller than 5.")
        if float(settings.application["noise"]) < 10:
            raise Refusal("The noise is too small.")

    def charge(self, settings: PairwiseSettings) -> None:
        self.asked.append("charge")
        if self.budget == 0:
            raise Refusal("The budget is spent.")
        self.budget -= 1

    def endorse(self, settings: PairwiseSettings, survivors: tuple[int, ...]) -> None:
        self.asked.append(f"endorse {len(survivors)}")

    def settle(self, settings: PairwiseSettings, survivors: tuple[int, ...]) -> None:
        self.asked.append(f"settle {len(survivors)}")


def guarded(devices: Any) -> Any:
    devices.nodes = {i: Node(i, node.run, StrictGuard(i)) for i, node in devices.nodes.items()}
    return devices


def test_a_tiny_cohort_is_refused_before_any_key_leaves(fleet: Build) -> None:
    devices = guarded(fleet(4))
    node = devices.settings.cohort[0]
    with pytest.raises(Refusal, match="smaller than 5"):
        devices.answer(RoundStage.ADVERTISE, node, devices.settings.encoded)
    assert devices.states[node] == b""


def test_lowered_noise_is_refused(fleet: Build) -> None:
    devices = guarded(fleet(6))
    low = replace(devices.settings, application={"noise": 1})
    with pytest.raises(Refusal, match="noise"):
        devices.answer(RoundStage.ADVERTISE, low.cohort[0], low.encoded)


def test_the_guard_is_asked_in_order_and_told_who_survived(fleet: Build) -> None:
    devices = guarded(fleet(6, drops=1))
    devices.run({RoundStage.MASK: [devices.settings.cohort[5]]})
    guard = devices.nodes[devices.settings.cohort[0]].guard
    assert guard.asked == ["admit", "charge", "endorse 5", "settle 5"]
    dropped = devices.nodes[devices.settings.cohort[5]].guard
    assert dropped.asked == ["admit"]


def test_without_budget_no_vector_leaves(fleet: Build) -> None:
    devices = guarded(fleet(6))
    session = devices.run(until=RoundStage.MASK)
    node, request = next(iter(session.requests().items()))
    devices.nodes[node].guard.budget = 0
    with pytest.raises(Refusal, match="budget"):
        devices.answer(RoundStage.MASK, node, request)
    stage = DeviceState.decode(devices.states[node]).sessions[devices.settings.digest].stage
    assert stage is DeviceStage.SHARED
