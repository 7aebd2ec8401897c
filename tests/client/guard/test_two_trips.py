"""Rounds of two trips before the guard of a device: what its owner's policy refuses, and its one answer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.client.guard.offer import offer_of
from fedsketch.client.guard.owners_refusal import BudgetSpent, LedgerProblem
from fedsketch.conf import compose
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.runtime.processes import fitting_policy
from fedsketch.secagg import Refusal, TwoTripsSettings
from tests.client.guard.enrolled import KEY, RUN, Fleet, settings_of, two_trips

ALL = (2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("changes", "offer", "sentence"),
    [
        (
            {"protocols": ("pairwise",)}, {},
            "This device's owner does not allow sums in two round trips: run with secagg=pairwise (protocols in the "
            "policy).",
        ),
        (
            {"largest_losses": 0.1}, {"losses": 1},
            "The round tolerates 1 losses of 6 clients, this device's owner 0: set clients.tolerated_losses to 0.1 at "
            "most.",
        ),
        (
            {"largest_losses": 0.2}, {"n": 24, "groups": 2, "losses": 3},
            "The round tolerates 3 losses of 12 clients, this device's owner 2: set",
        ),
        ({"largest_drops": 0.1}, {}, "The round tolerates 1 dropouts of 6 clients, this device's owner 0: set"),
        (
            {"assumed_colluders": 2.0}, {"n": 12, "colluders": 1},
            "The round assumes 1 clients who work with the server, this device's owner 2 of 12: set secagg.colluders "
            "to 2.",
        ),
        (
            {"assumed_colluders": 0.1}, {"n": 20, "colluders": 1, "groups": 2},
            "The round assumes 1 clients who work with the server, this device's owner 2 of 20: set",
        ),
        ({"smallest_cohort": 6}, {}, "A sum over 5 clients is too small for this device"),
        ({"smallest_cohort": 6}, {"n": 12, "groups": 2}, "A sum over 5 clients is too small for this device"),
        ({"smallest_noise": 5.0}, {}, "The noise multiplier of the honest clients is 4 per client in the worst case"),
        ({"most_rounds": 0}, {}, BudgetSpent.public_text),
    ],
)  # fmt: skip
def test_a_round_outside_the_policy_is_refused_with_a_sentence(
    guard: DeviceGuard, changes: dict[str, Any], offer: dict[str, Any], sentence: str
) -> None:
    guard.policy = replace(guard.policy, **changes)
    for step in (guard.admit, guard.charge):
        with pytest.raises(Refusal) as caught:
            step(two_trips(**offer))
        assert str(caught.value).startswith(sentence)
        assert len(str(caught.value)) < 300  # what the server's log keeps
    assert guard.ledger.verified()[1] == 1


def test_a_policy_for_two_trips_alone_refuses_pairwise_masks_and_says_what_to_run(
    guard: DeviceGuard,
) -> None:
    guard.policy = replace(guard.policy, protocols=("two_trips",), allow_semi_honest=True)
    for consistency in (True, False):
        with pytest.raises(Refusal) as caught:
            guard.admit(settings_of(consistency=consistency))
        assert str(caught.value) == (
            "This device's owner does not allow pairwise masks: run with secagg=two_trips (protocols in the policy)."
        )
    with pytest.raises(Refusal, match="run with secagg=two_trips \\(its owner can set allow_unm"):
        guard.admit_unmasked("train")
    guard.admit(two_trips())


def test_the_number_of_colluders_holds_in_every_cohort(guard: DeviceGuard) -> None:
    """A share is a share of what the server says, so a small cohort has fewer colluders by its word."""
    guard.policy = replace(guard.policy, assumed_colluders=0.1)
    guard.admit(two_trips(6))
    guard.policy = replace(guard.policy, assumed_colluders=2.0)
    with pytest.raises(Refusal, match=r"this device's owner 2 of 6: set secagg.colluders to 2"):
        guard.admit(two_trips(6))
    guard.admit(two_trips(16, colluders=2))


def test_a_round_is_charged_with_the_key_of_the_epoch_and_stays_at_its_worst_case(
    guard: DeviceGuard,
) -> None:
    settings = two_trips()
    guard.charge(settings)
    assert f'"key":"{KEY.hex()}"' in (guard.folder / "ledger.jsonl").read_text()
    guard.answer(settings, ALL)
    worst = Accountant(1e-5)
    worst.record(offer_of(settings).release(5, Unit.CLIENT))
    spent = guard.ledger.verified()[0].spent(1e-5)
    assert spent == pytest.approx(worst.epsilon(tight=False).epsilon)


def test_without_a_key_of_the_epoch_nothing_is_charged(guard: DeviceGuard) -> None:
    guard.admit(two_trips(key=b""))
    with pytest.raises(Refusal, match="needs this device's key of the epoch"):
        guard.charge(two_trips(key=b""))
    assert guard.ledger.verified()[1] == 1


def test_the_key_is_in_no_digest() -> None:
    assert two_trips(key=KEY).digest == two_trips(key=b"").digest


def _again(guard: DeviceGuard) -> DeviceGuard:
    """The guard in a new process, which knows nothing but the folder."""
    return DeviceGuard(guard.folder)


def test_a_device_answers_about_one_list_though_its_state_was_put_back(guard: DeviceGuard) -> None:
    settings = two_trips()
    guard.charge(settings)
    guard.answer(settings, ALL[1:])
    _again(guard).answer(settings, ALL[1:])
    for other in (ALL, ALL[:-1]):
        with pytest.raises(Refusal, match="has answered about another survivor list"):
            _again(guard).answer(settings, other)


def test_a_context_that_was_not_charged_has_no_answer(guard: DeviceGuard) -> None:
    guard.charge(two_trips())
    with pytest.raises(Refusal, match="was charged with other settings"):
        guard.answer(two_trips(noise=5.0), ALL)
    with pytest.raises(Refusal, match="is not open in this device's ledger"):
        guard.answer(two_trips(round=2), ALL)


@pytest.mark.parametrize(
    ("survivors", "sentence"),
    [
        ((2, 3, 4, 5, 5), "not distinct members of the cohort"),
        ((2, 3, 4, 5, 99), "not distinct members of the cohort"),
        ((2, 3, 4, 5), "4 survivors are not what the round was charged for"),
    ],
)
def test_a_list_that_cannot_be_is_refused(
    guard: DeviceGuard, survivors: tuple[int, ...], sentence: str
) -> None:
    guard.charge(two_trips())
    with pytest.raises(Refusal, match=sentence):
        guard.answer(two_trips(), survivors)


def test_the_last_charge_is_that_of_two_trips_in_its_run(guard: DeviceGuard) -> None:
    assert guard.last_charge(RUN) == b""
    guard.charge(two_trips())
    guard.charge(settings_of(round=2))
    assert _again(guard).last_charge(RUN) == two_trips().digest
    assert guard.last_charge(RUN + 1) == b""
    guard.charge(two_trips(round=3))
    assert guard.last_charge(RUN) == two_trips(round=3).digest


def test_an_unusable_ledger_answers_nothing_and_tells_nobody_why(guard: DeviceGuard) -> None:
    guard.charge(two_trips())
    (guard.folder / "ledger.jsonl").write_bytes(b"")
    steps: list[Callable[[], object]] = [
        lambda: guard.answer(two_trips(), ALL),
        lambda: guard.last_charge(RUN),
    ]
    for step in steps:
        with pytest.raises(Refusal) as caught:
            step()
        assert str(caught.value) == LedgerProblem.public_text


def test_every_group_is_charged_as_the_smallest(make_fleet: Callable[..., Fleet]) -> None:
    """13 clients in 2 groups: a sum over 7 counts as one over 6 of whom one drops out."""
    guard = make_fleet(1).guard(2)
    settings: TwoTripsSettings = two_trips(13, groups=2)
    assert (settings.n, settings.sizes.least) == (7, 5)
    assert guard.judge(settings).least == 5


@pytest.mark.parametrize(
    "overrides",
    [(), ("clients.tolerated_losses=2", "secagg.colluders=1")],
    ids=["shares", "counts"],
)
def test_the_policies_that_we_make_ourselves_admit_sums_in_two_trips(
    guard: DeviceGuard, overrides: tuple[str, ...]
) -> None:
    run = compose(["clients.total=10", "clients.per_round=10", "secagg=two_trips", *overrides])
    guard.policy = fitting_policy(run)
    losses = 2 if overrides else 0
    guard.admit(two_trips(10, drops=1, losses=losses, colluders=1))
    if overrides:
        with pytest.raises(Refusal, match=r"set secagg\.colluders to 1"):
            guard.admit(two_trips(10, drops=1, losses=losses, colluders=0))
