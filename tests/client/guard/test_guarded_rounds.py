"""Whole rounds on guarded devices, and a server that attacks them: the real protocol, a restart wherever it hurts."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedsketch.client.guard.guard import DeviceGuard, guard_of
from fedsketch.client.guard.offer import offer_of
from fedsketch.client.guard.policy import Policy
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.calibration import calibrate_skellam
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    NoSampling,
    Release,
    Unit,
)
from fedsketch.privacy.mechanisms.mechanism import Upload
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import (
    Aborted,
    Refusal,
    Roster,
    SecAggGrid,
    SecAggOptions,
    client_app,
)
from fedsketch.strategies.rounds.codec import MECHANISM, RingCodec, reply_with
from tests.client.guard.enrolled import DIM, Fleet, ring, settings_of
from tests.secagg.protocol import RoundStage, messages

# ---------------------------------------------------------------------------- whole rounds and attacks


def test_a_round_is_charged_and_settled_at_the_real_survivors(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet(6)
    settings = settings_of(6, drops=2)
    server = fleet.run(settings, silent=[7])
    assert server.sums[0].total.tolist() == [2 + 3 + 4 + 5 + 6] * DIM
    offer = offer_of(settings)
    for survivors, nodes in ((5, [2, 3, 4, 5, 6]), (0, [7])):
        for node in nodes:
            expected = 0.0
            if survivors:
                accountant = Accountant(1e-5)
                accountant.record(offer.release(survivors, Unit.CLIENT))
                expected = accountant.epsilon(tight=False).epsilon
            assert fleet.spent(node) == pytest.approx(expected)


def test_an_aborted_round_stays_charged_at_its_worst_case(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(6)
    settings = settings_of(6, drops=1)
    with pytest.raises(Aborted):
        fleet.run(settings, silent=[6, 7])
    accountant = Accountant(1e-5)
    accountant.record(offer_of(settings).release(5, Unit.CLIENT))
    assert fleet.spent(2) == pytest.approx(accountant.epsilon(tight=False).epsilon)
    assert fleet.spent(7) == 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"smallest_noise": 4.5}, "advertise: The noise multiplier of the honest clients is 4"),
        ({"smallest_cohort": 20}, "advertise: A sum over 5 clients is too small"),
        (
            {"epsilon": 0.01},
            "advertise: The privacy budget of this device does not cover this round",
        ),
    ],
)
def test_a_device_that_refuses_is_a_dropout_with_its_reason(
    make_fleet: Callable[..., Fleet], changes: dict[str, Any], reason: str
) -> None:
    fleet = make_fleet(6)
    fleet.set_policy(4, **changes)
    server = fleet.run(settings_of(6))
    assert server.lost[4].startswith(reason)
    assert server.sums[0].survivors == (2, 3, 5, 6, 7)
    assert fleet.spent(4) == 0.0


def test_lowered_noise_stops_the_round_before_any_key_leaves(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet(6)
    with pytest.raises(Aborted) as caught:
        fleet.run(settings_of(6, record={"local_variance": 1000}))
    assert caught.value.stage == "advertise"
    assert all("noise multiplier" in reason for reason in caught.value.missing.values())


def test_a_replayed_round_is_refused_after_a_restart(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(6)
    settings = settings_of(6)
    fleet.run(settings)
    fleet.states = dict.fromkeys(fleet.folders, b"")  # the nodes lost all but their folders
    for again in (settings.encoded, settings_of(6, noise=5.0).encoded):
        with pytest.raises(
            Refusal, match="Round 1 of run 1 is over: the vector of round 1 has left"
        ):
            fleet.answer(RoundStage.ADVERTISE, 2, again)


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (RoundStage.MASK, "is over: the vector of round 1 has left this device"),
        (RoundStage.SIGN, "This device has signed a survivor list of Round 1 of run 1 before"),
        (RoundStage.UNMASK, "is not open in this device's ledger: it has ended"),
    ],
)
def test_no_step_is_taken_twice_though_the_state_of_the_node_is_put_back(
    make_fleet: Callable[..., Fleet], step: RoundStage, sentence: str
) -> None:
    fleet = make_fleet(6)
    settings = settings_of(6)
    server = fleet.run(settings, until=step)
    before, request = fleet.states[2], server.requests()[2]
    fleet.answer(step, 2, request)
    fleet.states[2] = before
    with pytest.raises(Refusal, match=sentence):
        fleet.answer(step, 2, request)


def test_of_keys_that_were_advertised_twice_for_a_round_one_vector_leaves(
    make_fleet: Callable[..., Fleet],
) -> None:
    """Opening a round is not written down. A node that lost its state opens the same round again, with other keys;
    what it had before is kept by an attacker and put back. Only one of the two sessions sends a vector."""
    fleet = make_fleet(6)
    settings = settings_of(6)
    ledger = fleet.folders[2] / "ledger.jsonl"
    untouched = ledger.read_bytes()
    first = fleet.run(settings, until=RoundStage.MASK)
    old = fleet.states[2]
    fleet.states = dict.fromkeys(fleet.folders, b"")
    second = fleet.run(settings, until=RoundStage.MASK)
    assert ledger.read_bytes() == untouched
    fleet.answer(RoundStage.MASK, 2, second.requests()[2])
    fleet.states[2] = old
    with pytest.raises(Refusal, match="is over: the vector of round 1 has left this device"):
        fleet.answer(RoundStage.MASK, 2, first.requests()[2])
    assert fleet.guard(2).ledger.verified()[0].rounds == 1


def test_a_second_survivor_list_is_not_signed(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(6)
    settings = settings_of(6, drops=2)
    server = fleet.run(settings, until=RoundStage.SIGN)
    before = fleet.states[2]
    fleet.answer(RoundStage.SIGN, 2, server.requests()[2])
    fleet.states[2] = before
    with pytest.raises(Refusal, match="This device has signed a survivor list"):
        fleet.answer(RoundStage.SIGN, 2, messages.sign_request(settings, range(5)))
    with pytest.raises(Refusal, match="signed no such survivor list"):
        fleet.guard(2).settle(settings, (2, 3, 4, 5, 6))


def test_another_broadcast_than_announced_is_refused_before_anything_is_charged(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet(6)
    server = fleet.run(settings_of(6), until=RoundStage.MASK)
    with pytest.raises(Refusal, match="not the one that was announced: its hash differs"):
        fleet.answer(RoundStage.MASK, 2, server.requests()[2], model=b"\x22" * 32)
    assert fleet.spent(2) == 0.0


def test_a_policy_that_is_tightened_in_the_middle_of_a_round_holds_at_once(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet(6)
    server = fleet.run(settings_of(6), until=RoundStage.MASK)
    fleet.set_policy(2, smallest_noise=10.0)
    with pytest.raises(Refusal, match="noise multiplier"):
        fleet.answer(RoundStage.MASK, 2, server.requests()[2])
    assert fleet.spent(2) == 0.0


def test_a_tampered_ledger_makes_a_device_a_dropout(
    make_fleet: Callable[..., Fleet], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = make_fleet(6)
    fleet.run(settings_of(6))
    path = fleet.folders[2] / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))  # the charge is gone
    server = fleet.run(settings_of(6, round=2))
    sentence = "This device's ledger cannot be used: the log of its node says why."
    assert server.lost[2] == f"advertise: {sentence}"
    assert "The ledger is damaged before or at line 2" in caplog.text


def test_a_run_calibrated_for_the_policys_budget_fits_exactly(guard: DeviceGuard) -> None:
    """All rounds that the server planned for are paid, none settled; one more is not."""
    rounds, budget = 20, 4.0

    def noise(l2: float, l1: float) -> float:
        return calibrate_skellam(
            lambda mechanism: Release(
                mechanism, NoSampling(), Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.SERVER
            ),
            l2_sensitivity=l2, l1_sensitivity=l1, rounds=rounds, epsilon=budget, delta=1e-5,
        )  # fmt: skip

    plan = choose_ring(dim=DIM, clients=30, clip=0.5, noise=noise, drops=3, colluders=3)
    guard.policy = Policy(epsilon=budget)
    for number in range(1, rounds + 1):
        settings = settings_of(
            30,
            round=number,
            drops=3,
            colluders=3,
            application=plan.to_record(),
        )
        guard.admit(settings)
        guard.charge(settings)
    assert 0.99 * budget < guard.ledger.state().spent(1e-5) <= budget
    extra = settings_of(30, round=21, drops=3, colluders=3, application=plan.to_record())
    with pytest.raises(Refusal, match="does not cover this round"):
        guard.admit(extra)


# ---------------------------------------------------------------------------- through Flower


def fleet_grid(fleet: Fleet, n: int) -> LocalGrid:
    """Nodes whose operator set `device`, with a train handler that needs no torch."""
    app = client_app(RingCodec(), guard_of)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        admitted = mechanism_from_record(message.content.config_records[MECHANISM])
        assert isinstance(admitted, SkellamRing)
        with Stream() as stream:
            vector = admitted.encode(np.full((1, DIM), 0.25), stream, 1)
        return Message(reply_with(Upload(vector)), reply_to=message)

    grid = LocalGrid(app, n)
    for node, folder in fleet.folders.items():
        grid.folders[node] = folder
    return grid


def train_messages(offered: SkellamRing, n: int) -> list[Message]:
    content = RecordDict({MECHANISM: ConfigRecord(offered.to_record())})  # type: ignore[arg-type]
    return [Message(content, node, "train") for node in range(2, n + 2)]


def test_a_budget_that_ends_in_the_middle_of_a_run_is_a_logged_dropout(
    make_fleet: Callable[..., Fleet],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    fleet, offered = make_fleet(6), ring(6)
    two_rounds = Accountant(1e-5)
    two_rounds.record(offer_of(settings_of(6)).release(5, Unit.CLIENT), 2)
    fleet.set_policy(4, epsilon=two_rounds.epsilon(tight=False).epsilon)
    grid = SecAggGrid(fleet_grid(fleet, 6), SecAggOptions(drops=1), RingCodec())
    survivors = []
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            (reply,) = grid.send_and_receive(train_messages(offered, 6))
            survivors.append(reply.content.config_records["secagg"]["survivors"])
    assert survivors == [[2, 3, 4, 5, 6, 7]] * 2 + [[2, 3, 5, 6, 7]]
    assert (
        "1 dropouts: node 4: advertise: The privacy budget of this device does not" in caplog.text
    )
    assert fleet.guard(4).ledger.verified()[0].rounds == 2
    assert fleet.guard(2).ledger.verified()[0].settled == 3


def test_merged_rounds_are_charged_and_settled_too(
    make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of a round are then exchanged before the one before it is settled."""
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    fleet = make_fleet(6)
    grid = SecAggGrid(fleet_grid(fleet, 6), SecAggOptions(drops=1, merged=True), RingCodec())
    for _ in range(3):
        (reply,) = grid.send_and_receive(train_messages(ring(6), 6))
        assert len(reply.content.config_records["secagg"]["survivors"]) == 6  # type: ignore[arg-type]
    for node in fleet.folders:
        state = fleet.guard(node).ledger.verified()[0]
        assert (state.rounds, state.settled) == (3, 3)


def test_a_server_that_asks_without_masks_gets_a_sentence_and_the_owner_too(
    make_fleet: Callable[..., Fleet],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    grid = fleet_grid(make_fleet(2), 2)
    for reply in grid.send_and_receive(train_messages(ring(6), 2)):
        assert not reply.content.array_records
        refusal = str(reply.content.config_records["secagg"]["refusal"])
        assert refusal.startswith("This device answers only under secure aggregation")
        assert f"This device refuses: {refusal}" in caplog.text  # the log of the node


def test_unknown_peers_are_refused(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(6)
    own = fleet.folders[2] / "roster.json"
    keys = Roster.load(own).keys
    Roster({node: key for node, key in keys.items() if node != 5}).save(own)
    with pytest.raises(Refusal, match="Node 5 and 0 others are not in the roster"):
        fleet.answer(RoundStage.ADVERTISE, 2, settings_of(6).encoded)
    assert fleet.guard(2).ledger.verified()[1] == 1
