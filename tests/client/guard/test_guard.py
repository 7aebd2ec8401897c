"""A device's own guard against a server that may ask anything: real folders, the real protocol, a restart wherever it
hurts."""

import logging
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

import fedsketch.client
from fedsketch.client.enroll import enrol
from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.guard import DEVICE_VARIABLE, DeviceGuard, SimulatedGuard, guard_of
from fedsketch.client.guard.offer import offer_of
from fedsketch.client.guard.policy import Policy
from fedsketch.conf import compose
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.calibration import calibrate_skellam
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    NoSampling,
    Release,
    Skellam,
    Unit,
)
from fedsketch.privacy.mechanisms.mechanism import Upload
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.runtime.local import LocalGrid
from fedsketch.runtime.processes import fitting_policy
from fedsketch.secagg import (
    Aborted,
    Refusal,
    Roster,
    RoundSettings,
    SecAggError,
    SecAggGrid,
    SecAggOptions,
    VectorFormat,
    client_app,
    device,
    messages,
)
from fedsketch.secagg.coordinator import Coordinator, Step
from fedsketch.secagg.device import Node
from fedsketch.strategies.shared.codec import RingCodec
from fedsketch.strategies.shared.uploads import MECHANISM, reply_with

CARD = DataCard("digits", (1, 8, 8), tuple("0123456789"), 512)
RUN, DIM, MODEL = 1, 6, b"\x11" * 32
POLICY = Policy(smallest_cohort=4, largest_drops=0.4, assumed_colluders=0.0, epsilon=100.0)


def ring(
    n: int, drops: int = 1, colluders: int = 0, noise: float = 4.0, **plan: Any
) -> SkellamRing:
    """A mechanism whose worst case has this noise multiplier."""
    return choose_ring(
        dim=DIM,
        clients=n,
        clip=plan.pop("clip", 1.0),
        noise=lambda l2, l1: (noise * l2) ** 2,
        drops=drops,
        colluders=colluders,
        **plan,
    )


def settings_of(
    n: int = 6,
    *,
    round: int = 1,
    drops: int = 1,
    colluders: int = 0,
    consistency: bool = True,
    groups: int = 1,
    application: Mapping[str, Any] | None = None,
    record: Mapping[str, Any] | None = None,
    **options: Any,
) -> RoundSettings:
    """What an honest server proposes, with changes to what the application commits to."""
    members = -(-n // groups)
    if application is None:
        application = ring(members, drops, colluders, **options).to_record()
    whole = dict(application)
    whole = {**whole, **(record or {})}
    bits = options.get("bits", 32)
    plan = SecAggOptions(drops=drops, colluders=colluders, consistency=consistency, groups=groups)
    vector = VectorFormat(DIM, bits, {k: v for k, v in whole.items() if v is not None})
    return plan.settings(RUN, round, range(2, n + 2), vector, MODEL)


class Fleet:
    """Enrolled devices, each in its folder, with the protocol's state beside."""

    def __init__(self, root: Path, n: int, policy: Policy) -> None:
        self.folders = {node: root / f"device{node}" for node in range(2, n + 2)}
        self.roster = root / "roster.json"
        (root / "policy.toml").write_text(policy.to_toml())
        for node, folder in self.folders.items():
            enrol(folder, node, self.roster, root / "policy.toml", CARD)
        for folder in self.folders.values():
            enrol(folder, roster=self.roster)
        self.states = dict.fromkeys(self.folders, b"")

    def guard(self, node: int) -> DeviceGuard:
        """As in a new process: nothing but the folder is remembered."""
        return DeviceGuard(self.folders[node])

    def spent(self, node: int) -> float:
        return self.guard(node).ledger.verified()[0].spent(1e-5)

    def set_policy(self, node: int, **changes: Any) -> None:
        policy = replace(self.guard(node).policy, **changes)
        (self.folders[node] / "policy.toml").write_text(policy.to_toml())

    def answer(self, step: Step, node: int, request: bytes, model: bytes = MODEL) -> bytes:
        me, state = Node(node, RUN, self.guard(node)), self.states[node]
        if step is Step.MASK:
            ticket = device.open_mask(me, state, request, model)
            self.states[node] = device.spend(me, ticket)
            vector = np.full(DIM, node, dtype=np.uint32)
            self.states[node], reply = device.mask(ticket, vector)
            return reply
        steps = {
            Step.ADVERTISE: device.advertise,
            Step.SHARE: device.share,
            Step.SIGN: device.sign,
            Step.UNMASK: device.unmask,
        }
        self.states[node], reply = steps[step](me, state, request)
        return reply

    def run(
        self, settings: RoundSettings, until: Step = Step.DONE, silent: Iterable[int] = ()
    ) -> Coordinator:
        """A round up to a stage; those who are silent do not send their vector."""
        coordinator = Coordinator(settings, Roster.load(self.roster))
        coordinator.bind(MODEL)
        while coordinator.step < until:
            step = coordinator.step
            for node, request in coordinator.requests().items():
                if node in silent and step is Step.MASK:
                    continue
                try:
                    coordinator.receive(node, self.answer(step, node, request))
                except SecAggError as error:
                    coordinator.lose(node, str(error))
            coordinator.close()
        return coordinator


@pytest.fixture
def make_fleet(tmp_path: Path) -> Callable[..., Fleet]:
    def build(n: int = 6, policy: Policy = POLICY, **changes: Any) -> Fleet:
        return Fleet(tmp_path, n, replace(policy, **changes))

    return build


@pytest.fixture
def guard(make_fleet: Callable[..., Fleet]) -> DeviceGuard:
    """One device alone: enough for what is refused before any peer matters."""
    return make_fleet(1).guard(2)


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
            "The round tolerates 1 dropouts of 6 clients: this device's owner allows a share of 0.1.",
        ),
        (
            {"assumed_colluders": 0.2}, {},
            "The round assumes 0 clients who work with the server, this device's owner 1 of 6: set secagg.colluders "
            "to 0.2.",
        ),
        ({"largest_clip": 0.5}, {}, "The round's clip 1 is above the 0.5 of this device's owner."),
        ({"rings": (20, 64)}, {}, "This device's owner does not allow a ring of 32 bits."),
        (
            {"smallest_noise": 5.0}, {},
            "The noise multiplier of the honest clients is 4 per client in the worst case: this device's owner asks "
            "for 5.",
        ),
        (
            {}, {"consistency": False},
            "This device takes part only in rounds with signed survivor lists: run with secagg=pairwise (its owner "
            "can set allow_semi_honest).",
        ),
        ({"most_rounds": 0}, {}, "This device has taken part in 0 rounds, and its owner allows 0."),
        ({"epsilon": 0.5}, {}, "at delta 1e-05; the owner allows 0.5, of which 0.5 is left."),
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


def test_the_same_round_inside_the_policy_is_admitted(guard: DeviceGuard) -> None:
    guard.policy = replace(guard.policy, smallest_cohort=5)  # as many as are left after one dropout
    guard.admit(settings_of())
    guard.admit(settings_of(12, groups=2))
    guard.admit(settings_of(round=2, bits=20))
    guard.policy = replace(guard.policy, allow_semi_honest=True)
    guard.admit(settings_of(round=3, consistency=False))


def test_the_policies_that_we_make_ourselves_admit_three_devices_of_which_one_may_drop_out(
    guard: DeviceGuard,
) -> None:
    demo = Path(fedsketch.client.__path__[0]).parent / "docker" / "demo-policy.toml"
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
    assert worst.mechanism.variance == (9 - 2 - 1) * plan.local_variance  # type: ignore[union-attr]
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
    row, all_rows = (examples.release(5, unit).mechanism for unit in (Unit.EXAMPLE, Unit.CLIENT))
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
        "This device answers only under secure aggregation: run with secagg=pairwise (its owner can set "
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


# ---------------------------------------------------------------------------- whole rounds and attacks


def test_a_round_is_charged_and_settled_at_the_real_survivors(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet(6)
    settings = settings_of(6, drops=2)
    coordinator = fleet.run(settings, silent=[7])
    assert coordinator.sums[0].total.tolist() == [2 + 3 + 4 + 5 + 6] * DIM
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
    coordinator = fleet.run(settings_of(6))
    assert coordinator.lost[4].startswith(reason)
    assert coordinator.sums[0].survivors == (2, 3, 5, 6, 7)
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
            fleet.answer(Step.ADVERTISE, 2, again)


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (Step.MASK, "is over: the vector of round 1 has left this device"),
        (Step.SIGN, "This device has signed a survivor list of Round 1 of run 1 before"),
        (Step.UNMASK, "is not open in this device's ledger: it has ended"),
    ],
)
def test_no_step_is_taken_twice_though_the_state_of_the_node_is_put_back(
    make_fleet: Callable[..., Fleet], step: Step, sentence: str
) -> None:
    fleet = make_fleet(6)
    settings = settings_of(6)
    coordinator = fleet.run(settings, until=step)
    before, request = fleet.states[2], coordinator.requests()[2]
    fleet.answer(step, 2, request)
    fleet.states[2] = before
    with pytest.raises(Refusal, match=sentence):
        fleet.answer(step, 2, request)


def test_of_keys_that_were_advertised_twice_for_a_round_one_vector_leaves(
    make_fleet: Callable[..., Fleet],
) -> None:
    """Opening a round is not written down. A node that lost its state opens the same round again, with other keys;
    what
    it had before is kept by an attacker and put back. Only one of the two sessions sends a vector."""
    fleet = make_fleet(6)
    settings = settings_of(6)
    ledger = fleet.folders[2] / "ledger.jsonl"
    untouched = ledger.read_bytes()
    first = fleet.run(settings, until=Step.MASK)
    old = fleet.states[2]
    fleet.states = dict.fromkeys(fleet.folders, b"")
    second = fleet.run(settings, until=Step.MASK)
    assert ledger.read_bytes() == untouched
    fleet.answer(Step.MASK, 2, second.requests()[2])
    fleet.states[2] = old
    with pytest.raises(Refusal, match="is over: the vector of round 1 has left this device"):
        fleet.answer(Step.MASK, 2, first.requests()[2])
    assert fleet.guard(2).ledger.verified()[0].rounds == 1


def test_a_second_survivor_list_is_not_signed(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(6)
    settings = settings_of(6, drops=2)
    coordinator = fleet.run(settings, until=Step.SIGN)
    before = fleet.states[2]
    fleet.answer(Step.SIGN, 2, coordinator.requests()[2])
    fleet.states[2] = before
    with pytest.raises(Refusal, match="This device has signed a survivor list"):
        fleet.answer(Step.SIGN, 2, messages.sign_request(settings, range(5)))
    with pytest.raises(Refusal, match="signed no such survivor list"):
        fleet.guard(2).settle(settings, (2, 3, 4, 5, 6))


def test_another_broadcast_than_announced_is_refused_before_anything_is_charged(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet(6)
    coordinator = fleet.run(settings_of(6), until=Step.MASK)
    with pytest.raises(Refusal, match="not the one that was announced: its hash differs"):
        fleet.answer(Step.MASK, 2, coordinator.requests()[2], model=b"\x22" * 32)
    assert fleet.spent(2) == 0.0


def test_a_policy_that_is_tightened_in_the_middle_of_a_round_holds_at_once(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet(6)
    coordinator = fleet.run(settings_of(6), until=Step.MASK)
    fleet.set_policy(2, smallest_noise=10.0)
    with pytest.raises(Refusal, match="noise multiplier"):
        fleet.answer(Step.MASK, 2, coordinator.requests()[2])
    assert fleet.spent(2) == 0.0


def test_a_tampered_ledger_makes_a_device_a_dropout(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(6)
    fleet.run(settings_of(6))
    path = fleet.folders[2] / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))  # the charge is gone
    coordinator = fleet.run(settings_of(6, round=2))
    assert coordinator.lost[2].startswith("advertise: The ledger is damaged before or at line 2")


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
    with pytest.raises(Refusal, match=r"of which .* is left"):
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


def test_a_server_that_asks_without_masks_gets_a_sentence(
    make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    grid = fleet_grid(make_fleet(2), 2)
    for reply in grid.send_and_receive(train_messages(ring(6), 2)):
        assert not reply.content.array_records
        refusal = str(reply.content.config_records["secagg"]["refusal"])
        assert refusal.startswith("This device answers only under secure aggregation")


def test_unknown_peers_are_refused(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(6)
    own = fleet.folders[2] / "roster.json"
    keys = Roster.load(own).keys
    Roster({node: key for node, key in keys.items() if node != 5}).save(own)
    with pytest.raises(Refusal, match="Node 5 and 0 others are not in the roster"):
        fleet.answer(Step.ADVERTISE, 2, settings_of(6).encoded)
    assert fleet.guard(2).ledger.verified()[1] == 1
