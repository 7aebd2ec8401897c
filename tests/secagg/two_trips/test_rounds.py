"""Honest rounds: sums are exact whatever drops out when, or the round stops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsketch.secagg.errors import Aborted, SecAggError
from fedsketch.secagg.server_session import RoundStage
from fedsketch.secagg.two_trips.server_session import TwoTripsSession
from fedsketch.secagg.two_trips.settings import TwoTripsSettings
from fedsketch.secagg.two_trips.state import Memory
from tests.secagg.two_trips.fleet import Fleet, check

STEPS = [RoundStage.HELLO, RoundStage.MASK, RoundStage.ANSWER]


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (2, {}),
        (3, {"bits": 16}),
        (5, {"drops": 1, "colluders": 1}),
        (10, {"losses": 2, "colluders": 2, "dim": 64}),
        (20, {"drops": 2, "losses": 2, "colluders": 4, "bits": 32, "dim": 100}),
        (21, {"groups": 3, "drops": 1, "dim": 9}),
        (60, {"drops": 0.05, "losses": 0.05, "colluders": 0.1, "bits": 27, "dim": 458}),
    ],
)
def test_sums_are_exact(n: int, options: dict[str, Any]) -> None:
    fleet = Fleet(n, **options)
    for _ in range(3):
        check(fleet, fleet.run(expected=fleet.ids), fleet.ids)


@pytest.mark.parametrize("step", STEPS)
def test_drops_in_any_step_leave_the_sum_exact(step: RoundStage) -> None:
    fleet = Fleet(20, drops=2, losses=2, colluders=2)
    gone = fleet.ids[3:5]
    for _ in range(2):
        included = set(fleet.ids) - (set(gone) if step < RoundStage.ANSWER else set())
        session = fleet.run({step: gone}, expected=fleet.ids)
        check(fleet, session, included)
        assert set(session.lost) == set(gone)
    check(fleet, fleet.run(expected=fleet.ids), fleet.ids if step else set(fleet.ids) - set(gone))
    check(fleet, fleet.run(expected=fleet.ids), fleet.ids)


@pytest.mark.parametrize(
    ("step", "many"), [(RoundStage.HELLO, 2), (RoundStage.MASK, 2), (RoundStage.ANSWER, 3)]
)
def test_one_more_than_tolerated_stops_the_round(step: RoundStage, many: int) -> None:
    fleet = Fleet(12, drops=1, losses=1)
    with pytest.raises(Aborted, match=step.name.lower()):
        fleet.run({step: fleet.ids[:many]})
    check(fleet, fleet.run(), fleet.ids)  # and the next is as good as any


def group_settings(session: TwoTripsSession) -> list[TwoTripsSettings]:
    """The settings of each group."""
    return [group.settings for group in session._groups]


def random_round(fleet: Fleet, rng: np.random.Generator) -> None:
    """A round with a random cohort, and random drops within what is tolerated, or beyond."""
    cohort = sorted(rng.choice(fleet.ids, size=int(rng.integers(12, 20)), replace=False).tolist())
    order, at = rng.permutation(cohort).tolist(), 0
    drops: dict[RoundStage, list[int]] = {}
    for step, many in zip(STEPS, rng.integers(0, [2, 3, 3]), strict=True):
        drops[step] = order[at : at + many]
        at += many
    try:
        session = fleet.run(drops, cohort=cohort, expected=cohort if rng.random() < 0.5 else None)
    except Aborted:
        return
    included = {node for result in session.sums for node in result.survivors}
    early = {*drops[RoundStage.HELLO], *drops[RoundStage.MASK]}
    check(fleet, session, included)
    assert set(cohort) - early >= included
    assert len(included) >= len(cohort) - 2


def play(seed: int, rounds: int) -> None:
    """Random rounds of one fleet, over several short epochs."""
    rng = np.random.default_rng(seed)
    options = {"drops": 2, "losses": 1, "colluders": int(rng.integers(0, 2)), "epoch_rounds": 5}
    fleet = Fleet(20, dim=int(rng.integers(1, 40)), bits=int(rng.integers(16, 33)), **options)
    for _ in range(rounds):
        random_round(fleet, rng)


@pytest.mark.parametrize("seed", range(4))
def test_random_rounds_are_exact_or_stop(seed: int) -> None:
    play(seed, 25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_ten_thousand_random_rounds_are_exact_or_stop(seed: int) -> None:
    play(seed, 1000)


def test_an_epoch_costs_one_trip_more_and_the_next_none() -> None:
    fleet = Fleet(6, epoch_rounds=2)
    numbers = []
    for _ in range(5):
        session, steps = fleet.begin(), 0
        while session.stage is not RoundStage.DONE:
            ahead = fleet.rounds.ahead(session, fleet.numbers, fleet.ids, fleet.vector)
            fleet.step(session)
            if ahead is not None:
                fleet.step(ahead)
            steps += 1
        check(fleet, session, fleet.ids)
        numbers.append(steps)
    assert numbers == [3, 2, 2, 2, 2]
    assert session.epoch.number == 5


def test_settings_and_keys_travel_once() -> None:
    fleet = Fleet(10)
    sizes = []
    for _ in range(3):
        fleet.run()
        sizes.append(len(fleet.requests[RoundStage.MASK, fleet.ids[0]]))
    assert sizes[0] > 1000
    assert sizes[1:] == [57, 57]


def test_another_cohort_brings_its_new_peers_along() -> None:
    fleet = Fleet(12)
    check(fleet, fleet.run(cohort=fleet.ids[:8]), fleet.ids[:8])
    check(fleet, fleet.run(cohort=fleet.ids[4:]), fleet.ids[4:])
    known = Memory.decode(fleet.states[fleet.ids[5]]).epochs[1].peers
    assert set(known) == set(fleet.ids)
    assert set(Memory.decode(fleet.states[fleet.ids[1]]).epochs[1].peers) == set(fleet.ids[:8])
    check(fleet, fleet.run(), fleet.ids)


def test_a_device_that_started_again_is_back_in_the_round_after_the_next() -> None:
    fleet = Fleet(10, drops=1)
    fleet.run(expected=fleet.ids)
    fleet.states[fleet.ids[2]] = b""
    others = set(fleet.ids) - {fleet.ids[2]}
    missed = fleet.run(expected=fleet.ids)
    check(fleet, missed, others)
    assert "does not have" in missed.lost[fleet.ids[2]]
    check(fleet, fleet.run(expected=fleet.ids), fleet.ids)


def test_groups_are_sums_of_their_own_with_the_sizes_of_the_whole() -> None:
    fleet = Fleet(23, groups=4, drops=1, colluders=1)
    first, second = fleet.run(), fleet.run()
    assert sorted(len(result.survivors) for result in first.sums) == [5, 6, 6, 6]
    assert [r.survivors for r in first.sums] == [r.survivors for r in second.sums]
    assert first.settings.sizes.n == 23
    check(fleet, second, fleet.ids)


def test_closed_epochs_erase_the_private_key_when_all_have_met() -> None:
    fleet = Fleet(8, closed=True, drops=1)
    fleet.run({RoundStage.HELLO: fleet.ids[:1]}, expected=fleet.ids)
    assert Memory.decode(fleet.states[fleet.ids[3]]).epochs[1].private
    fleet.run(expected=fleet.ids)
    fleet.run(expected=fleet.ids)
    assert not Memory.decode(fleet.states[fleet.ids[3]]).epochs[1].private
    fleet.ids.append(999_999)  # one more: an epoch of its own
    fleet.join(999_999)
    check(fleet, fleet.run(), fleet.ids)
    assert len(Memory.decode(fleet.states[fleet.ids[3]]).epochs) == 1


@pytest.mark.parametrize("spare", [0, 2])
def test_a_wrong_answer_is_noticed_if_more_than_needed_answer(spare: int) -> None:
    """With exactly as many answers as are needed, it shifts the sum, as a device always can by its vector."""
    fleet = Fleet(10, losses=spare)
    session = fleet.begin()
    while session.stage is not RoundStage.ANSWER:
        fleet.step(session)
    for node, request in session.requests().items():
        reply = fleet.answer(RoundStage.ANSWER, node, request)
        flipped = bytes([*reply[:-1], reply[-1] ^ 1]) if node == fleet.ids[4] else reply
        session.receive(node, flipped)
    if spare:
        with pytest.raises(Aborted, match="answered wrongly"):
            session.close()
    else:
        session.close()
        assert session.sums[0].total.tolist() != fleet.expected(fleet.ids)


def test_a_device_takes_part_in_one_group_of_a_round() -> None:
    """Each group is a round of its own, with all colluders in it; a second one for the same device is refused."""
    fleet = Fleet(12, groups=2, colluders=1)
    session = fleet.begin()
    fleet.step(session)
    requests = session.requests()
    first, second = (settings.cohort for settings in group_settings(session))
    assert {settings.colluders for settings in group_settings(session)} == {1}
    fleet.answer(RoundStage.MASK, first[0], requests[first[0]])
    with pytest.raises(SecAggError, match="not in the cohort"):
        fleet.answer(RoundStage.MASK, first[1], requests[second[0]])
    with pytest.raises(SecAggError, match="seen before"):
        fleet.answer(RoundStage.MASK, first[0], requests[first[0]])
