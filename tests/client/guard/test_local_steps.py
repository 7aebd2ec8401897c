"""A round with noise inside of training at a device's guard: judged, booked and played from one record, by example."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsketch.client.enroll import enrol
from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.client.guard.offer import offer_of
from fedsketch.client.guard.policy import Policy
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    DrawnBy,
    Gaussian,
    Poisson,
    Release,
    Unit,
)
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.secagg import PairwiseSettings, Refusal, SecAggOptions, VectorFormat

DIM, N = 6, 5
POLICY = Policy(
    smallest_cohort=3, largest_drops=0.4, assumed_colluders=0.2, epsilon=2.0, unit="example"
)
OFFER = NoisyTraining(
    unit=Unit.EXAMPLE,
    rows=5000,
    clip=0.01,
    local_multiplier=4.0,
    rate=0.05,
    steps=5,
    batch=250.0,
    lr=1.0,
    dim=DIM,
    bits=32,
    clients=N,
)


@pytest.fixture
def guard(tmp_path: Path) -> DeviceGuard:
    (tmp_path / "policy.toml").write_text(POLICY.to_toml())
    card = DataCard("digits", (1, 8, 8), tuple("0123456789"), 512)
    enrol(tmp_path / "device", 2, tmp_path / "roster.json", tmp_path / "policy.toml", card)
    return DeviceGuard(tmp_path / "device")


def asked(round: int = 1, **changes: Any) -> PairwiseSettings:
    options = SecAggOptions(drops=1, colluders=1, consistency=True)
    form = VectorFormat(DIM, 32, {**OFFER.to_record(), **changes})
    return PairwiseSettings.proposed(options, 1, round, range(2, N + 2), form, b"\x11" * 32)


def test_the_ledger_books_the_steps_that_the_record_asks_for(guard: DeviceGuard) -> None:
    settings = asked()
    guard.admit(settings)
    guard.charge(settings)
    own = Poisson(0.05, Unit.EXAMPLE, DrawnBy.DEVICE)
    steps = Release(Gaussian(4.0), own, Adjacency.ZERO_OUT, Unit.EXAMPLE, Adversary.SERVER, times=5)
    state, _ = guard.ledger.verified()
    assert state.releases == {steps: 1}
    accountant = Accountant(1e-5)
    accountant.record(replace(steps, times=1), 5)
    assert state.spent(1e-5) == accountant.epsilon(tight=False).epsilon
    # What is played is what was judged.
    assert offer_of(settings).mechanism == OFFER


def test_rounds_are_booked_until_the_budget_is_spent(guard: DeviceGuard) -> None:
    guard.policy = replace(guard.policy, epsilon=0.7)
    accountant, release = Accountant(1e-5), offer_of(asked()).release(N, Unit.EXAMPLE)
    played = -1
    while accountant.epsilon(tight=False).epsilon <= 0.7:
        accountant.record(release)
        played += 1
    assert played > 3
    for round in range(1, played + 1):
        guard.charge(asked(round=round))
    with pytest.raises(Refusal, match="The privacy budget of this device does not cover"):
        guard.charge(asked(round=played + 1))


def test_survivors_change_nothing_about_the_price(guard: DeviceGuard) -> None:
    settings = asked()
    guard.charge(settings)
    before = guard.ledger.verified()[0].spent(1e-5)
    survivors = (2, 3, 4, 5)
    guard.endorse(settings, survivors)
    guard.settle(settings, survivors)
    assert guard.ledger.verified()[0].spent(1e-5) == before


@pytest.mark.parametrize(
    ("changes", "policy", "sentence"),
    [
        ({}, {"most_local_steps": 4}, "The round asks for more local steps than this device's owner allows."),
        ({"steps": 10_001}, {}, "The round asks for more local steps than this device's owner allows."),
        ({"local_multiplier": 0.9}, {}, "The noise multiplier of the honest clients is 0.9 per example"),
        ({"clip": 11.0}, {}, "The round's clip 11 is above the 10 of this device's owner."),
        ({"rate": 1.0, "steps": 5000}, {}, "The privacy budget of this device does not cover this round"),
        ({}, {"unit": "client"}, "The noise multiplier of the honest clients is 0.0008 per client"),
        ({}, {"unit": "client", "smallest_noise": 0.0}, "The privacy budget of this device does not cover this round"),
        ({"clients": N + 1}, {}, "The mechanism was made for clients = 6, but the round has 5."),
        ({"bits": 0}, {}, "Only ring integers can be summed under masks"),
        ({"rate": 1.01}, {}, "The mechanism has an invalid 'rate'."),
        ({"drawn_by": "device"}, {}, "The mechanism holds an unknown 'drawn_by'"),
    ],
)  # fmt: skip
def test_a_round_outside_the_policy_is_refused(
    guard: DeviceGuard, changes: dict[str, Any], policy: dict[str, Any], sentence: str
) -> None:
    guard.policy = replace(guard.policy, **policy)
    with pytest.raises(Refusal) as caught:
        guard.admit(asked(**changes))
    assert str(caught.value).startswith(sentence)
    assert guard.ledger.verified()[1] == 1
