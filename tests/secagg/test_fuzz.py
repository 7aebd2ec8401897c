"""Whatever bytes arrive, a device and a server raise only errors of this package, and do not hang."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsketch.secagg.errors import Aborted, SecAggError
from fedsketch.secagg.pairwise import device
from fedsketch.secagg.pairwise.server_session import PairwiseSession
from fedsketch.secagg.pairwise.state import DeviceState
from fedsketch.secagg.server_session import RoundStage

STAGES = [
    RoundStage.ADVERTISE,
    RoundStage.SHARE,
    RoundStage.MASK,
    RoundStage.SIGN,
    RoundStage.UNMASK,
]
Moment = tuple[Any, PairwiseSession, int, bytes]
RELAXED = settings(
    max_examples=120,
    deadline=2000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def moments(fleet: Callable[..., Any]) -> dict[tuple[RoundStage, int], Moment]:
    """A round stopped before each stage, with and without groups, and one device's request."""
    result = {}
    for groups in (1, 2):
        for stage in STAGES:
            devices = fleet(8, drops=0, groups=groups, bits=20)
            session = devices.run(until=stage)
            node, request = next(iter(session.requests().items()))
            result[stage, groups] = (devices, session, node, request)
    return result


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """The mutations of a coverage-guided fuzzer: cut, extend, flip, overwrite, copy, randomise."""
    kind = draw(st.sampled_from(["cut", "extend", "flip", "number", "splice", "random"]))
    where = draw(st.floats(0, 1, exclude_max=True))
    blob = draw(st.binary(max_size=64))
    number = draw(st.sampled_from([0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]))
    bit = draw(st.integers(0, 7))

    def apply(data: bytes) -> bytes:
        at = int(where * len(data))
        match kind:
            case "cut":
                return data[:at]
            case "extend":
                return data + (blob or b"\0")
            case "flip":
                return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
            case "number":
                return data[:at] + number.to_bytes(4, "little") + data[at + 4 :]
            case "splice":
                return data[:at] + blob + data[at:]
            case _:
                return blob

    return apply


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
@RELAXED
@given(changes=st.lists(damage(), min_size=1, max_size=3))
def test_damaged_requests_to_a_device(
    stage: RoundStage,
    groups: int,
    changes: list[Callable[[bytes], bytes]],
    moments: dict[tuple[RoundStage, int], Moment],
) -> None:
    devices, _, node, request = moments[stage, groups]
    before = dict(devices.states)
    damaged = request
    for change in changes:
        damaged = change(damaged) if damaged else damaged
    refusal = "."
    try:
        devices.answer(stage, node, damaged)
    except SecAggError as error:
        refusal = str(error)
        unchanged = devices.states == before
    else:
        unchanged = True
    devices.states = before
    assert unchanged
    assert refusal.endswith(".")


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
@RELAXED
@given(changes=st.lists(damage(), min_size=1, max_size=3))
def test_damaged_replies_to_the_server(
    stage: RoundStage,
    groups: int,
    changes: list[Callable[[bytes], bytes]],
    moments: dict[tuple[RoundStage, int], Moment],
) -> None:
    devices, original, node, request = moments[stage, groups]
    before = dict(devices.states)
    session = copy.deepcopy(original)
    damaged = devices.answer(stage, node, request)
    devices.states = before
    for change in changes:
        damaged = change(damaged) if damaged else damaged
    session.receive(node, damaged)
    # drops=0: a lost client must stop the round, and a silent one as well.
    with pytest.raises(Aborted):
        session.close()


@RELAXED
@given(changes=st.lists(damage(), min_size=1, max_size=3), stage=st.sampled_from(STAGES[1:]))
def test_a_damaged_state(
    changes: list[Callable[[bytes], bytes]],
    stage: RoundStage,
    moments: dict[tuple[RoundStage, int], Moment],
) -> None:
    devices, _, node, _ = moments[stage, 1]
    damaged = devices.states[node]
    for change in changes:
        damaged = change(damaged) if damaged else damaged
    try:
        DeviceState.decode(damaged)
    except SecAggError:
        return


@pytest.fixture
def stopwatch() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 5


@pytest.mark.usefixtures("stopwatch")
@pytest.mark.parametrize("colluders", [0, 10_000, 49_000])
def test_huge_cohorts_are_judged_quickly(
    colluders: int, fleet: Callable[..., Any], settings_of: Callable[..., Any]
) -> None:
    """A server's settings cost a device bounded work before it refuses."""
    good = settings_of(300)
    huge = object.__new__(type(good))
    for name in good.__dataclass_fields__:
        huge.__dict__[name] = getattr(good, name)
    huge.__dict__.update(cohort=tuple(range(100_000)), colluders=colluders, drops=1000)
    devices = fleet(3)
    with pytest.raises(SecAggError):
        device.advertise(devices.nodes[1000], b"", huge.encoded)
