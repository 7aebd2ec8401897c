"""Which guard a device has, what is wrong with its folder, and which rounds its owner's policy refuses."""

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

import fedsketch.client
from fedsketch.client.guard.guard import DEVICE_VARIABLE, DeviceGuard, SimulatedGuard, guard_of
from fedsketch.client.guard.offer import offer_of
from fedsketch.client.guard.owners_refusal import BudgetSpent
from fedsketch.client.guard.policy import Policy
from fedsketch.conf import compose
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    NoSampling,
    Skellam,
    Unit,
)
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.runtime.processes import fitting_policy
from fedsketch.secagg import (
    Refusal,
)
from tests.client.guard.enrolled import DIM, POLICY, RUN, ring, settings_of

# ---------------------------------------------------------------------------- which guard


def context(**node_config: Any) -> Context:
    return Context(RUN, 2, node_config, RecordDict(), {})


def test_without_a_folder_a_device_refuses_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)
    with pytest.raises(Refusal) as caught:
        guard_of(context())
    assert str(caught.value) == (
        "This device has no policy yet: make its folder with fedsketch-enroll and name it in FEDSKETCH_DEVICE."
    )


def test_the_operator_names_the_folder_in_the_environment_or_the_node_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    monkeypatch.setenv(DEVICE_VARIABLE, str(tmp_path / "a"))
    here, there = guard_of(context()), guard_of(context(device=str(tmp_path / "b")))
    assert isinstance(here, DeviceGuard)
    assert isinstance(there, DeviceGuard)
    assert (here.folder, there.folder) == (tmp_path / "a", tmp_path / "b")


def test_a_simulation_has_a_guard_without_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIMULATION_VARIABLE, "1")
    assert isinstance(guard_of(context()), SimulatedGuard)


def test_importing_the_guard_imports_nothing_heavy() -> None:
    code = (
        "import fedsketch.client.guard.guard, fedsketch.client.enroll, sys\n"
        "print([m for m in ('torch', 'scipy', 'dp_accounting', 'pydantic', 'hydra') if m in sys.modules])"
    )
    root = Path(fedsketch.client.__path__[0]).parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


FILES = {
    "identity": "identity.key",
    "roster": "roster.json",
    "policy": "policy.toml",
    "card": "data.toml",
}


@pytest.mark.parametrize("what", FILES)
def test_a_missing_file_is_a_refusal_that_names_it(guard: DeviceGuard, what: str) -> None:
    name = FILES[what]
    (guard.folder / name).unlink()
    with pytest.raises(Refusal) as caught:
        getattr(guard, what)
    assert str(caught.value) == f"This device has no {name}: make it with fedsketch-enroll."


def _others_may_read_the_key(folder: Path) -> None:
    (folder / "identity.key").chmod(0o640)


def _no_roster(folder: Path) -> None:
    (folder / "roster.json").write_text("{}")


def _misspelt_policy(folder: Path) -> None:
    (folder / "policy.toml").write_text("epsilom = 1")


def _card_that_is_a_folder(folder: Path) -> None:
    (folder / "data.toml").unlink()
    (folder / "data.toml").mkdir()


@pytest.mark.parametrize(
    ("what", "damage", "reason"),
    [
        ("identity", _others_may_read_the_key, "Others may read the private key"),
        ("roster", _no_roster, "is not a roster of the format"),
        ("policy", _misspelt_policy, "there is no key 'epsilom'"),
        ("card", _card_that_is_a_folder, "Is a directory"),
    ],
)
def test_what_is_wrong_with_a_file_is_for_the_owners_log_alone(
    guard: DeviceGuard,
    what: str,
    damage: Callable[[Path], None],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    damage(guard.folder)
    with pytest.raises(Refusal) as caught:
        getattr(guard, what)
    told = "This device cannot use its own files: the log of its node says why."
    assert str(caught.value) == told
    assert reason in caplog.text


# ---------------------------------------------------------------------------- what the policy refuses


@pytest.mark.parametrize(
    ("changes", "offer", "sentence"),
    [
        (
            {"smallest_cohort": 7}, {"drops": 0},
            "A sum over 6 clients is too small for this device, and the round would release one if all tolerated "
            "dropouts happen: its owner asks for 7.",
        ),
        ({"smallest_cohort": 6}, {"drops": 1}, "A sum over 5 clients is too small for this device"),
        (
            {"smallest_cohort": 6}, {"n": 12, "drops": 1, "groups": 2},
            "A sum over 5 clients is too small for this device",
        ),
        (
            {"largest_drops": 0.1}, {},
            "The round tolerates 1 dropouts of 6 clients, this device's owner 0: set clients.tolerated_dropouts to 0.1 "
            "at most.",
        ),
        (
            {"assumed_colluders": 0.2}, {},
            "The round assumes 0 clients who work with the server, this device's owner 1 of 6: set secagg.colluders "
            "to 0.2.",
        ),
        ({"largest_clip": 0.5}, {}, "The round's clip 1 is above the 0.5 of this device's owner."),
        (
            {"rings": (20, 64)}, {},
            "This device's owner does not allow a ring of 32 bits: set secagg.bits to one of 20, 64.",
        ),
        (
            {"smallest_noise": 5.0}, {},
            "The noise multiplier of the honest clients is 4 per client in the worst case: this device's owner asks "
            "for 5.",
        ),
        (
            {}, {"consistency": False},
            "This device takes part only in rounds that hold against a server that lies: run with secagg=pairwise or "
            "two_trips (its owner can set allow_semi_honest).",
        ),
        ({"most_rounds": 0}, {}, BudgetSpent.public_text),
        ({"epsilon": 0.5}, {}, BudgetSpent.public_text),
        ({}, {"noise": 0.0}, "The noise multiplier of the honest clients is 0 per client"),
        ({}, {"rows": 40}, "The noise multiplier of the honest clients is 0.1 per client"),
        ({"unit": "example"}, {"noise": 1.5}, "The noise multiplier of the honest clients is 0.75 per example"),
    ],
)  # fmt: skip
def test_a_round_outside_the_policy_is_refused_with_a_sentence(
    guard: DeviceGuard, changes: dict[str, Any], offer: dict[str, Any], sentence: str
) -> None:
    guard.policy = replace(guard.policy, **changes)
    with pytest.raises(Refusal) as caught:
        guard.admit(settings_of(**offer))
    assert str(caught.value).endswith(sentence) or str(caught.value).startswith(sentence)
    assert len(str(caught.value)) < 300  # what the server's log keeps
    assert guard.ledger.verified()[1] == 1


def test_a_refusal_for_lack_of_budget_tells_the_owner_what_was_spent_and_nobody_else(
    guard: DeviceGuard, caplog: pytest.LogCaptureFixture
) -> None:
    """What is left says what other servers got."""
    guard.charge(settings_of())
    rounds, epsilon = guard.ledger.state().rounds, guard.ledger.state().spent(1e-5)
    told = []
    for changes in ({"epsilon": 1.001 * epsilon}, {"most_rounds": rounds}):
        guard.policy = replace(POLICY, **changes)
        for step in (guard.admit, guard.charge):
            with pytest.raises(Refusal) as caught:
                step(settings_of(round=2))
            told.append(str(caught.value))
    assert set(told) == {BudgetSpent.public_text}
    assert not any(character.isdigit() for character in BudgetSpent.public_text)
    assert f"of which {0.001 * epsilon:.4g} is left" in caplog.text
    assert "This device has taken part in 1 rounds" in caplog.text


def test_the_same_round_inside_the_policy_is_admitted(guard: DeviceGuard) -> None:
    guard.policy = replace(guard.policy, smallest_cohort=5)  # as many as are left after one dropout
    guard.admit(settings_of())
    guard.admit(settings_of(12, groups=2))
    guard.admit(settings_of(round=2, bits=20))
    guard.admit(settings_of(round=2, bits=19))
    guard.policy = replace(guard.policy, allow_semi_honest=True)
    guard.admit(settings_of(round=3, consistency=False))


def test_the_policies_that_we_make_ourselves_admit_three_devices_of_which_one_may_drop_out(
    guard: DeviceGuard,
) -> None:
    demo = Path(__file__).parents[3] / "docker" / "demo-policy.toml"
    run = compose(["clients.total=3", "clients.per_round=3", "clients.tolerated_dropouts=0.34"])
    for policy in (Policy.load(demo), fitting_policy(run)):
        guard.policy = policy
        guard.admit(settings_of(3, drops=1))


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"mechanism": "gaussian"}, "The mechanism holds an unknown"),
        ({"mechanism": "none"}, "The mechanism is none of skellam, gaussian, noisy_training, coordinate_sampling."),
        ({"mechanism": None}, "The mechanism is none of skellam, gaussian, noisy_training, coordinate_sampling."),
        ({"clip": None}, "The mechanism lacks 'clip'"),
        ({"discount": 3}, "The mechanism holds an unknown 'discount'"),
        ({"unit": "user"}, "The mechanism has an invalid 'unit'."),
        ({"dim": DIM + 1}, "The mechanism was made for dim = 7, but the round has 6."),
        ({"bits": 31}, "The mechanism was made for bits = 31, but the round has 32."),
        (
            {"prime": 2**32 - 5},
            "The mechanism was made for modulus = 4294967291, but the round has 4294967296.",
        ),
        ({"prime": 65521}, "The mechanism has an invalid 'prime'."),
        ({"clients": 60}, "The mechanism was made for clients = 60, but the round has 6."),
        ({"drops": 0}, "The mechanism was made for drops = 0, but the round has 1."),
        ({"colluders": 1}, "The mechanism was made for colluders = 1, but the round has 0."),
        ({"scale": 2.0**40}, "The round's sum does not fit its ring of 32 bits."),
        ({"scale": 1e300}, "The round's sum does not fit its ring of 32 bits."),
        ({"local_variance": 2**62}, "The round's sum does not fit its ring of 32 bits."),
        ({"wraparound_probability": 2.0}, "The mechanism has an invalid 'wraparound_probability'."),
        ({"rows": 2**40}, "The round's sum does not fit its ring of 32 bits."),
        *[
            ({name: value}, f"The mechanism has an invalid '{name}'.")
            for name, value in [
                ("clip", math.nan), ("clip", math.inf), ("clip", 0.0), ("clip", -1.0), ("clip", "1"), ("clip", True),
                ("scale", math.nan), ("scale", -1.0), ("scale", b"1"),
                ("local_variance", -1), ("local_variance", 1e9), ("local_variance", True),
                ("rows", 0), ("rows", -1), ("rows", 1.0), ("rotate", 0), ("drops", -1),
                ("wraparound_probability", 0.0), ("wraparound_probability", math.nan),
            ]
        ],
    ],
)  # fmt: skip
def test_an_inconsistent_offer_is_refused(record: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refusal) as caught:
        offer_of(settings_of(record=record))
    assert str(caught.value).startswith(sentence)


def test_real_numbers_are_refused_under_masks() -> None:
    gaussian = {"mechanism": "gaussian", "local_multiplier": 9.0, "clip": 1.0}
    with pytest.raises(Refusal, match="Only ring integers can be summed under masks"):
        offer_of(settings_of(application=gaussian))


def test_an_empty_offer_is_refused() -> None:
    with pytest.raises(Refusal, match="The mechanism is none of"):
        offer_of(settings_of(application={}))


def test_the_noise_that_counts_is_that_of_the_honest_survivors() -> None:
    settings = settings_of(9, drops=2, colluders=1)
    offer = offer_of(settings)
    plan = ring(9, 2, 1)
    assert offer.mechanism == plan
    worst = offer.release(offer.least, Unit.CLIENT)
    assert worst.law.variance == (9 - 2 - 1) * plan.local_variance  # type: ignore[union-attr]
    assert offer.noise_multiplier(Unit.CLIENT) == pytest.approx(4.0, rel=1e-6)
    assert worst.adjacency is Adjacency.ZERO_OUT
    assert worst.sampling == NoSampling()


def test_what_a_unit_can_change_depends_on_what_a_row_is() -> None:
    examples = offer_of(settings_of(rows=3, record={"unit": "example"}))
    clients = offer_of(settings_of())
    assert examples.mechanism.weight(Unit.EXAMPLE) == 1
    assert examples.mechanism.weight(Unit.CLIENT) == 3
    assert clients.mechanism.weight(Unit.CLIENT) == 1
    # One example can turn its client's row into any other one.
    assert clients.mechanism.weight(Unit.EXAMPLE) == 2
    row, all_rows = (examples.release(5, unit).law for unit in (Unit.EXAMPLE, Unit.CLIENT))
    assert isinstance(row, Skellam)
    assert all_rows == Skellam(row.variance, 3 * row.l2_sensitivity, 3 * row.l1_sensitivity)


def test_seeded_noise_on_a_device_is_refused(
    guard: DeviceGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedsketch.privacy.simulation import SEED_VARIABLE

    monkeypatch.setenv(SEED_VARIABLE, "3")
    with pytest.raises(Refusal, match="FEDSKETCH_SEEDED_NOISE is set on this device"):
        guard.admit(settings_of())


def test_plain_replies_are_refused_unless_the_owner_gave_up_the_budget(guard: DeviceGuard) -> None:
    with pytest.raises(Refusal) as caught:
        guard.admit_unmasked("train")
    assert str(caught.value) == (
        "This device answers only under secure aggregation: run with secagg=pairwise or two_trips (its owner can set "
        "allow_unmasked)."
    )
    guard.policy = replace(guard.policy, allow_unmasked=True, epsilon=math.inf)
    guard.admit_unmasked("train")
    assert guard.ledger.state().unmasked == 1


@pytest.mark.parametrize(
    ("survivors", "sentence"),
    [
        ((2, 3, 4, 5, 5), "not distinct members of the cohort"),
        ((2, 3, 4, 5, 99), "not distinct members of the cohort"),
        ((2, 3, 4, 5), "4 survivors are not what the round was charged for"),
    ],
)
def test_settling_for_impossible_survivors_is_refused(
    guard: DeviceGuard, survivors: tuple[int, ...], sentence: str
) -> None:
    settings = settings_of(drops=1)
    guard.admit(settings)
    guard.charge(settings)
    with pytest.raises(Refusal, match=sentence):
        guard.settle(settings, survivors)
