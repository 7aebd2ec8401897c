"""The sum is exact whatever drops out, and below the limits nothing is revealed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsketch.secagg.errors import Aborted
from fedsketch.secagg.guard import SimulationRoster
from fedsketch.secagg.pairwise.graph import draw_groups
from fedsketch.secagg.pairwise.server_session import PairwiseSession
from fedsketch.secagg.pairwise.settings import PairwiseSettings
from fedsketch.secagg.server_session import RoundStage

STAGES = [
    RoundStage.ADVERTISE,
    RoundStage.SHARE,
    RoundStage.MASK,
    RoundStage.SIGN,
    RoundStage.UNMASK,
]
Build = Callable[..., Any]


def check(devices: Any, drops: dict[RoundStage, list[int]]) -> None:
    session = devices.run(drops)
    assert session.sums
    for result in session.sums:
        np.testing.assert_array_equal(result.total, devices.expected(result.survivors))
    late = {*drops.get(RoundStage.SIGN, ()), *drops.get(RoundStage.UNMASK, ())}
    early = {i for step in STAGES[:3] for i in drops.get(step, ())}
    included = {i for result in session.sums for i in result.survivors}
    assert included == set(devices.settings.cohort) - early
    assert late <= included
    assert set(session.lost) == early | late
    # Nothing of the round stays in the state of a device that took part to the end.
    for node in included - late:
        assert len(devices.states[node]) < 20


@pytest.mark.parametrize(
    ("name", "n", "options", "drops"),
    [
        ("two clients", 2, {}, {}),
        ("three, one never answers", 3, {"drops": 1}, {0: 1}),
        ("three, one stops before its shares", 3, {"drops": 1}, {1: 1}),
        ("three, one stops before its vector", 3, {"drops": 1}, {2: 1}),
        ("three, one stops before it signs", 3, {"drops": 1}, {3: 1}),
        ("three, one stops before it reveals", 3, {"drops": 1}, {4: 1}),
        ("ten, down to the threshold before vectors", 10, {"drops": 4}, {2: 4}),
        ("ten, down to the threshold at each stage", 10, {"drops": 4}, {0: 1, 1: 1, 2: 1, 3: 1}),
        ("ten, down to the quorum after vectors", 10, {"drops": 0}, {3: 4}),
        ("ten, down to the threshold at the end", 10, {"drops": 0}, {4: 4}),
        ("colluders raise the threshold", 12, {"drops": 2, "colluders": 4}, {1: 1, 2: 1}),
        ("odd ring of 17 bits", 7, {"bits": 17, "drops": 2}, {2: 2}),
        ("small ring of 16 bits", 7, {"bits": 16, "drops": 2}, {1: 2}),
        ("large ring of 64 bits", 7, {"bits": 64, "drops": 2}, {2: 1, 4: 1}),
        ("semi-honest, four round trips", 9, {"consistency": False, "drops": 2}, {0: 1, 2: 1}),
        ("complete at 129 too", 129, {"dim": 3}, {0: 2, 1: 2, 2: 4, 3: 2, 4: 2}),
        ("the first ring", 129, {"dim": 3, "consistency": False}, {0: 2, 1: 2, 2: 4, 4: 4}),
        ("a ring of 300", 300, {"dim": 3, "drops": 0.05, "colluders": 0.1, "consistency": False}, {1: 5, 2: 10}),
        ("three groups", 30, {"groups": 3, "drops": 2}, {2: 2}),
        ("seven groups of odd sizes", 31, {"groups": 7, "drops": 1}, {1: 1}),
    ],
)  # fmt: skip
def test_named_rounds_are_exact(
    name: str, n: int, options: dict[str, Any], drops: dict[int, int], fleet: Build
) -> None:
    devices = fleet(n, seed=n, **options)
    ids = iter(devices.settings.cohort[1::2] + devices.settings.cohort[::2])
    check(
        devices, {STAGES[stage]: [next(ids) for _ in range(many)] for stage, many in drops.items()}
    )


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_pattern_of_tolerated_drops_is_exact(data: st.DataObject, fleet: Build) -> None:
    n = data.draw(st.integers(2, 24))
    colluders = data.draw(st.integers(0, max(0, n // 4 - 1)))
    most = n - ((n + colluders) // 2 + 1)
    drops = data.draw(st.integers(0, most))
    devices = fleet(
        n,
        seed=data.draw(st.integers(0, 2**32)),
        drops=drops,
        colluders=colluders,
        bits=data.draw(st.integers(16, 64)),
        dim=data.draw(st.integers(1, 70)),
        consistency=data.draw(st.booleans()),
    )
    order = data.draw(st.permutations(devices.settings.cohort))
    early = data.draw(st.integers(0, drops))
    gone: dict[RoundStage, list[int]] = {}
    for node in order[:early]:
        gone.setdefault(data.draw(st.sampled_from(STAGES[:3])), []).append(node)
    # After the vectors, everyone down to the threshold may still leave.
    later = (
        [RoundStage.SIGN, RoundStage.UNMASK]
        if devices.settings.consistency
        else [RoundStage.UNMASK]
    )
    for node in order[early : data.draw(st.integers(early, most))]:
        gone.setdefault(data.draw(st.sampled_from(later)), []).append(node)
    check(devices, gone)


@pytest.mark.slow  # test_named_rounds_are_exact has rings by default
@settings(max_examples=6, deadline=None)
@given(n=st.integers(129, 300), seed=st.integers(0, 2**32), data=st.data())
def test_large_rings_are_exact(n: int, seed: int, data: st.DataObject, fleet: Build) -> None:
    bits = data.draw(st.integers(16, 64))
    devices = fleet(n, seed=seed, dim=2, drops=0.05, bits=bits, consistency=False)
    order = data.draw(st.permutations(devices.settings.cohort))
    gone: dict[RoundStage, list[int]] = {}
    for node in order[: devices.settings.drops]:
        stage = data.draw(st.sampled_from([*STAGES[:3], RoundStage.UNMASK]))
        gone.setdefault(stage, []).append(node)
    check(devices, gone)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("consistency", [True, False])
def test_one_drop_too_many_aborts(stage: RoundStage, consistency: bool, fleet: Build) -> None:
    if stage is RoundStage.SIGN and not consistency:
        stage = RoundStage.UNMASK
    devices = fleet(9, drops=2, consistency=consistency)
    too_many = 3 if stage <= RoundStage.MASK else 9 - 5 + 1
    gone = list(devices.settings.cohort[:too_many])
    with pytest.raises(Aborted) as caught:
        devices.run({stage: gone})
    assert caught.value.stage == stage.name.lower()
    assert set(caught.value.missing) == set(gone)
    if stage < RoundStage.UNMASK:
        assert not any(step is RoundStage.UNMASK for step, _ in devices.requests)


def test_a_group_below_its_limit_stops_the_round_before_anything_is_revealed(fleet: Build) -> None:
    devices = fleet(20, groups=2, drops=1)
    session = devices.run(until=RoundStage.MASK)
    first = session._groups[0].members
    gone = [devices.settings.cohort[i] for i in first[:2]]
    with pytest.raises(Aborted):
        devices.stage(session, gone)
    assert not any(step in (RoundStage.SIGN, RoundStage.UNMASK) for step, _ in devices.requests)


def test_garbage_from_one_client_loses_only_that_client(fleet: Build) -> None:
    devices = fleet(8, drops=2)
    liar = devices.settings.cohort[3]
    session = PairwiseSession(devices.settings, SimulationRoster())
    session.bind(devices.settings.broadcast)
    for node, request in session.requests().items():
        answer = devices.answer(RoundStage.ADVERTISE, node, request)
        session.receive(node, os.urandom(161) if node == liar else answer)
    session.close()
    while session.stage is not RoundStage.DONE:
        devices.stage(session)
    assert list(session.lost) == [liar]
    result = session.sums[0]
    np.testing.assert_array_equal(result.total, devices.expected(result.survivors))


def test_a_wrong_signature_is_found_by_a_server_with_a_roster(fleet: Build) -> None:
    devices = fleet(8, drops=2)
    session = devices.run(until=RoundStage.SIGN)
    for node, request in session.requests().items():
        reply = devices.answer(RoundStage.SIGN, node, request)
        if node == devices.settings.cohort[0]:
            reply = reply[:-1] + bytes([reply[-1] ^ 1])
        session.receive(node, reply)
    session.close()
    assert "does not verify" in session.lost[devices.settings.cohort[0]]
    devices.stage(session)
    np.testing.assert_array_equal(session.sums[0].total, devices.expected(devices.settings.cohort))


@pytest.mark.parametrize("owner_dropped", [True, False])
def test_a_wrong_share_stops_the_round_instead_of_a_wrong_sum(
    owner_dropped: bool, fleet: Build
) -> None:
    devices = fleet(6, drops=1)
    dead = devices.settings.cohort[:1] if owner_dropped else ()
    session = devices.run({RoundStage.MASK: dead}, until=RoundStage.UNMASK)
    for number, (node, request) in enumerate(session.requests().items()):
        reply = bytearray(devices.answer(RoundStage.UNMASK, node, request))
        if number == 0:
            # The first share after the head and the set is that of the first client.
            reply[1 + 32 + 4 + 1 + 32] ^= 1
        session.receive(node, bytes(reply))
    with pytest.raises(Aborted, match="shares of node 1000 do not give"):
        session.close()


def test_answers_out_of_turn_are_ignored(fleet: Build) -> None:
    devices = fleet(4, drops=1)
    session = devices.run(until=RoundStage.SIGN)
    node = devices.settings.cohort[0]
    total = session._groups[0].total.copy()
    session.receive(999, b"unknown node")
    session.receive(node, devices.replies[RoundStage.MASK, node])
    np.testing.assert_array_equal(session._groups[0].total, total)


def test_a_vector_counts_once(fleet: Build) -> None:
    devices = fleet(4, drops=0)
    session = devices.run(until=RoundStage.MASK)
    for node, request in session.requests().items():
        reply = devices.answer(RoundStage.MASK, node, request)
        session.receive(node, reply)
        session.receive(node, reply)
    session.close()
    while session.stage is not RoundStage.DONE:
        devices.stage(session)
    np.testing.assert_array_equal(session.sums[0].total, devices.expected(devices.settings.cohort))


def test_groups_are_disjoint_even_and_depend_on_every_key(fleet: Build) -> None:
    seen = set()
    for seed in range(5):
        devices = fleet(23, groups=4, drops=0, seed=seed)
        session = devices.run()
        groups = [result.survivors for result in session.sums]
        assert sorted(i for group in groups for i in group) == list(devices.settings.cohort)
        assert sorted(len(group) for group in groups) == [5, 6, 6, 6]
        seen.add(tuple(groups))
    assert len(seen) == 5


def test_one_other_key_draws_other_groups(fleet: Build) -> None:
    settings = fleet(24, groups=4, drops=0).settings
    public = {i: bytes([i]) * 64 for i in range(24)}
    context, groups = draw_groups(settings, public)
    assert draw_groups(settings, public) == (context, groups)
    other_context, other_groups = draw_groups(settings, {**public, 7: bytes(64)})
    assert other_context != context
    assert other_groups != groups


def test_settings_reach_devices_unchanged(fleet: Build) -> None:
    devices = fleet(3)
    request = next(iter(PairwiseSession(devices.settings).requests().values()))
    assert PairwiseSettings.decode(request) == devices.settings
