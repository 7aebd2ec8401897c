"""Attacks of a server on a device: each is refused, or gives nothing.

The numbers are those of the list of flaws found in Flower's SecAgg+ 1.41.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg import device, keys, messages
from secagg.coordinator import Coordinator, Step
from secagg.device import Node
from secagg.errors import Malformed, Refusal, SecAggError, SettingsError
from secagg.guard import SimulationGuard, SimulationRoster, simulated_identity
from secagg.identity import Identity, Roster
from secagg.keys import PUBLIC_BYTES
from secagg.settings import RoundSettings
from secagg.shamir import SHARE_BYTES
from secagg.state import DeviceState, Stage

Build = Callable[..., Any]
Make = Callable[..., RoundSettings]


def unmask_request(devices: Any, survivors: list[int], statement_from: int | None = None) -> bytes:
    """A request with signatures of all survivors that a fleet at the sign stage would make."""
    settings = devices.settings
    signatures = {}
    for index in survivors:
        node = settings.cohort[index]
        session = DeviceState.decode(devices.states[node]).sessions[settings.digest]
        statement = device.survivor_statement(session, survivors)
        signatures[index] = devices.nodes[node].guard.identity.sign(statement)
    return messages.unmask_request(settings, survivors, signatures)


# 4. Both shares of one peer.


@pytest.mark.parametrize("consistency", [True, False])
def test_both_shares_of_a_peer_never_leave_a_device(consistency: bool, fleet: Build) -> None:
    devices = fleet(6, drops=2, consistency=consistency)
    coordinator = devices.run(until=Step.UNMASK)
    node, request = next(iter(coordinator.requests().items()))
    reply = devices.answer(Step.UNMASK, node, request)
    shares = messages.read_unmask_reply(devices.settings, reply)
    assert len(shares) == 6
    assert len(reply) == 1 + 32 + 4 + 1 + 6 * SHARE_BYTES
    # The second request, with a peer declared dead, finds nothing to reveal.
    other = messages.unmask_request(devices.settings, range(5), {})
    for again in (request, other):
        with pytest.raises(Refusal, match="does not know or has ended"):
            devices.answer(Step.UNMASK, node, again)


def test_which_share_leaves_is_a_function_of_the_list(fleet: Build) -> None:
    devices = fleet(6, drops=2)
    dead = devices.settings.cohort[5]
    coordinator = devices.run({Step.MASK: [dead]}, until=Step.UNMASK)
    node = devices.settings.cohort[0]
    kept = DeviceState.decode(devices.states[node]).sessions[devices.settings.digest].shares
    reply = devices.answer(Step.UNMASK, node, coordinator.requests()[node])
    shares = messages.read_unmask_reply(devices.settings, reply)
    for index, both in kept.items():
        seed_share, key_share = both[:SHARE_BYTES], both[SHARE_BYTES:]
        assert shares[index] == (key_share if index == 5 else seed_share)


# 5. Duplicate ids, thresholds 0 and 1, tiny rings.


@pytest.mark.parametrize(
    ("place", "value", "what"),
    [
        ("threshold", 0, "below"), ("threshold", 1, "below"), ("quorum", 1, "below"),
        ("bits", 8, "16 to 64"),
    ],
)  # fmt: skip
def test_weak_settings_from_the_server_are_refused(
    place: str, value: int, what: str, fleet: Build
) -> None:
    devices = fleet(6)
    settings = devices.settings
    weak = object.__new__(RoundSettings)  # a server does not run our checks
    for name in settings.__dataclass_fields__:
        weak.__dict__[name] = getattr(settings, name)
    weak.__dict__[place] = value
    with pytest.raises(SettingsError, match=what):
        devices.answer(Step.ADVERTISE, settings.cohort[0], weak.encoded)


def test_duplicate_ids_in_the_cohort_are_refused(fleet: Build) -> None:
    devices = fleet(6)
    settings = devices.settings
    weak = object.__new__(RoundSettings)
    for name in settings.__dataclass_fields__:
        weak.__dict__[name] = getattr(settings, name)
    weak.__dict__["cohort"] = (settings.cohort[0],) * 2 + settings.cohort[2:]
    with pytest.raises(SettingsError, match="distinct"):
        devices.answer(Step.ADVERTISE, settings.cohort[0], weak.encoded)


def test_a_peer_that_repeats_a_key_is_refused(fleet: Build) -> None:
    """Two ids behind one key pair would give one holder two shares."""
    devices = fleet(4)
    coordinator = devices.run(until=Step.SHARE)
    node = devices.settings.cohort[0]
    present, adverts = messages.read_share_request(devices.settings, coordinator.requests()[node])
    copied = adverts[1][: messages.PAIR_BYTES]
    peer = devices.settings.cohort[2]
    statement = messages.key_statement(devices.settings.digest, peer, copied)
    adverts[2] = copied + simulated_identity(peer).sign(statement)
    request = messages.share_request(devices.settings, present, adverts)
    with pytest.raises(Refusal, match="same key"):
        devices.answer(Step.SHARE, node, request)


# 6. Substituted keys.


def test_substituted_keys_are_refused(fleet: Build) -> None:
    devices = fleet(4)
    coordinator = devices.run(until=Step.SHARE)
    node = devices.settings.cohort[0]
    present, adverts = messages.read_share_request(devices.settings, coordinator.requests()[node])
    evil = keys.public_of(keys.new_private()) + keys.public_of(keys.new_private())
    statement = messages.key_statement(devices.settings.digest, devices.settings.cohort[1], evil)
    for signature in (adverts[1][messages.PAIR_BYTES :], Identity.generate().sign(statement)):
        forged = {**adverts, 1: evil + signature}
        request = messages.share_request(devices.settings, present, forged)
        with pytest.raises(Refusal, match="not signed by it"):
            devices.answer(Step.SHARE, node, request)


def test_keys_signed_for_other_settings_are_refused(fleet: Build) -> None:
    """Keys of an earlier round, or of a round shown differently to another device."""
    devices, others = fleet(4), fleet(4, round=2)
    coordinator, other = devices.run(until=Step.SHARE), others.run(until=Step.SHARE)
    node = devices.settings.cohort[0]
    present, adverts = messages.read_share_request(devices.settings, coordinator.requests()[node])
    _, old = messages.read_share_request(others.settings, other.requests()[node])
    request = messages.share_request(devices.settings, present, {**adverts, 1: old[1]})
    with pytest.raises(Refusal, match="not signed by it for these settings"):
        devices.answer(Step.SHARE, node, request)


def test_low_order_keys_are_refused(fleet: Build) -> None:
    devices = fleet(3)
    coordinator = devices.run(until=Step.SHARE)
    node, peer = devices.settings.cohort[0], devices.settings.cohort[1]
    present, adverts = messages.read_share_request(devices.settings, coordinator.requests()[node])
    zero = bytes(PUBLIC_BYTES) + adverts[1][32:64]
    statement = messages.key_statement(devices.settings.digest, peer, zero)
    forged = {**adverts, 1: zero + simulated_identity(peer).sign(statement)}
    with pytest.raises(Refusal, match="X25519"):
        devices.answer(Step.SHARE, node, messages.share_request(devices.settings, present, forged))


def test_unknown_peers_are_refused(settings_of: Make) -> None:
    settings = settings_of(4)
    guard = SimulationGuard(settings.cohort[0])
    guard.roster = Roster(  # type: ignore[assignment]
        {i: simulated_identity(i).public for i in settings.cohort[:3]}
    )
    node = Node(settings.cohort[0], settings.run, guard)
    with pytest.raises(Refusal, match="not in the roster"):
        device.advertise(node, b"", settings.encoded)


def test_a_device_with_another_key_than_enrolled_is_told_so(settings_of: Make) -> None:
    settings = settings_of(4)
    guard = SimulationGuard(settings.cohort[0])
    guard.identity = Identity.generate()
    node = Node(settings.cohort[0], settings.run, guard)
    with pytest.raises(Refusal, match="enrol"):
        device.advertise(node, b"", settings.encoded)


def test_shares_for_another_pair_do_not_open(fleet: Build) -> None:
    devices = fleet(4)
    coordinator = devices.run(until=Step.MASK)
    one, two = devices.settings.cohort[:2]
    alive, mine = messages.read_mask_request(devices.settings, coordinator.requests()[one])
    _, theirs = messages.read_mask_request(devices.settings, coordinator.requests()[two])
    swapped = messages.mask_request(devices.settings, alive, {**mine, 3: theirs[3]})
    with pytest.raises(Refusal, match="altered or belong elsewhere"):
        devices.answer(Step.MASK, one, swapped)
    flipped = bytearray(mine[3])
    flipped[5] ^= 1
    request = messages.mask_request(devices.settings, alive, {**mine, 3: bytes(flipped)})
    with pytest.raises(Refusal, match="altered or belong elsewhere"):
        devices.answer(Step.MASK, one, request)


def test_sharing_twice_from_one_state_does_not_repeat_a_nonce(fleet: Build) -> None:
    """A state that was rolled back must not make two messages under one key and nonce."""
    devices = fleet(3)
    coordinator = devices.run(until=Step.SHARE)
    node, request = next(iter(coordinator.requests().items()))
    before = devices.states[node]
    nonces = set()
    for _ in range(2):
        devices.states[node] = before
        reply = devices.answer(Step.SHARE, node, request)
        _, sealed = messages.read_share_reply(devices.settings, reply)
        nonces |= {ciphertext[:12] for ciphertext in sealed.values()}
    assert len(nonces) == 4


# Replays.


def test_a_replayed_or_older_round_is_refused(fleet: Build) -> None:
    devices = fleet(3, round=5)
    devices.run()
    node = devices.settings.cohort[0]
    for round_ in (5, 4, 0):
        again = replace(devices.settings, round=round_, nonce=os.urandom(16))
        with pytest.raises(Refusal, match="seen before"):
            devices.answer(Step.ADVERTISE, node, again.encoded)
    devices.answer(Step.ADVERTISE, node, replace(devices.settings, round=6).encoded)


def test_a_round_of_another_run_is_refused(fleet: Build) -> None:
    devices = fleet(3)
    with pytest.raises(Refusal, match="belongs to run 99"):
        devices.answer(
            Step.ADVERTISE, devices.settings.cohort[0], replace(devices.settings, run=99).encoded
        )


def test_a_device_outside_the_cohort_refuses(settings_of: Make) -> None:
    settings = settings_of(3)
    with pytest.raises(Refusal, match="not in the cohort"):
        device.advertise(Node(5, settings.run, SimulationGuard(5)), b"", settings.encoded)


@pytest.mark.parametrize("step", [Step.SHARE, Step.MASK, Step.SIGN, Step.UNMASK])
def test_every_step_happens_once_and_in_order(step: Step, fleet: Build) -> None:
    devices = fleet(4)
    devices.run()
    node = devices.settings.cohort[0]
    fresh = fleet(4)
    fresh.__init__(devices.settings)
    for early in (Step.SHARE, Step.MASK, Step.SIGN, Step.UNMASK):
        with pytest.raises(Refusal):
            fresh.answer(early, node, devices.requests[early, node])
    running = fleet(4)
    coordinator = running.run(until=step)
    request = coordinator.requests()[node]
    running.answer(step, node, request)
    with pytest.raises(Refusal, match=r"out of order or repeated|has ended"):
        running.answer(step, node, request)


def test_a_second_vector_is_refused(fleet: Build, model_hash: bytes) -> None:
    """Two vectors under one mask would give their difference away."""
    devices = fleet(4)
    coordinator = devices.run(until=Step.SIGN)
    assert coordinator.step is Step.SIGN
    node = devices.settings.cohort[0]
    with pytest.raises(Refusal, match="out of order or repeated"):
        device.open_mask(
            devices.nodes[node], devices.states[node], devices.requests[Step.MASK, node], model_hash
        )


# 3. Marking a live client dead; another survivor list per client.


def test_a_client_marked_dead_refuses_and_keeps_its_self_mask(fleet: Build) -> None:
    devices = fleet(7, drops=2)
    devices.run(until=Step.SIGN)
    victim = 6
    rest = [i for i in range(7) if i != victim]
    settings = devices.settings
    with pytest.raises(Refusal, match="missing among the survivors"):
        devices.answer(Step.SIGN, settings.cohort[victim], messages.sign_request(settings, rest))
    # The others take it for a dropout: they reveal its key s, and no share of its seed.
    kept = {
        i: DeviceState.decode(devices.states[settings.cohort[i]])
        .sessions[settings.digest]
        .shares[victim]
        for i in rest
    }
    for i in rest:
        devices.answer(Step.SIGN, settings.cohort[i], messages.sign_request(settings, rest))
    request = unmask_request(devices, rest)
    for i in rest:
        reply = devices.answer(Step.UNMASK, settings.cohort[i], request)
        revealed = messages.read_unmask_reply(settings, reply)[victim]
        assert revealed == kept[i][SHARE_BYTES:]
        assert revealed != kept[i][:SHARE_BYTES]
    with pytest.raises(Refusal):
        devices.answer(Step.UNMASK, settings.cohort[victim], request)


def test_different_survivor_lists_never_both_get_a_quorum(fleet: Build) -> None:
    """The server shows half the devices a list with the victim, half one without it."""
    devices = fleet(8, drops=2)
    devices.run(until=Step.SIGN)
    settings = devices.settings
    everyone, without = list(range(8)), list(range(7))
    signatures: dict[int, dict[int, bytes]] = {8: {}, 7: {}}
    for i in range(8):
        shown = everyone if i % 2 or i == 7 else without
        reply = devices.answer(
            Step.SIGN, settings.cohort[i], messages.sign_request(settings, shown)
        )
        signatures[len(shown)][i] = messages.read_sign_reply(settings, reply)
    for shown in (everyone, without):
        request = messages.unmask_request(settings, shown, signatures[len(shown)])
        for i in range(8):
            with pytest.raises(Refusal):
                devices.answer(Step.UNMASK, settings.cohort[i], request)


def test_another_list_than_the_signed_one_is_refused(fleet: Build) -> None:
    devices = fleet(7, drops=2)
    devices.run(until=Step.UNMASK)
    shorter = list(range(6))
    request = unmask_request(devices, shorter)
    with pytest.raises(Refusal, match="not the one that this device signed"):
        devices.answer(Step.UNMASK, devices.settings.cohort[0], request)


def test_a_device_signs_one_list_per_round(fleet: Build) -> None:
    devices = fleet(7, drops=2)
    devices.run(until=Step.UNMASK)
    with pytest.raises(Refusal, match="out of order or repeated"):
        devices.answer(
            Step.SIGN,
            devices.settings.cohort[0],
            messages.sign_request(devices.settings, range(6)),
        )


def test_without_signatures_two_lists_still_do_not_give_both_secrets(fleet: Build) -> None:
    """Semi-honest mode against a server that splits its lists: below the threshold on one side."""
    devices = fleet(9, drops=3, consistency=False)
    devices.run(until=Step.UNMASK)
    settings, victim = devices.settings, 8
    seed_shares = key_shares = 0
    for i in range(9):
        says_alive = i == victim or i % 2 == 0
        shown = [j for j in range(9) if j != victim or says_alive]
        devices.answer(
            Step.UNMASK, settings.cohort[i], messages.unmask_request(settings, shown, {})
        )
        seed_shares += says_alive
        key_shares += not says_alive
    assert min(seed_shares, key_shares) < settings.threshold
    assert seed_shares + key_shares < 2 * settings.threshold


@pytest.mark.parametrize("count", [3, 4, 5])
def test_too_few_or_repeated_or_foreign_signatures_are_refused(count: int, fleet: Build) -> None:
    devices = fleet(9, drops=2)
    coordinator = devices.run(until=Step.UNMASK)
    settings = devices.settings
    node = settings.cohort[0]
    survivors, signatures = messages.read_unmask_request(settings, coordinator.requests()[node])
    few = dict(list(signatures.items())[:count])
    if count < settings.quorum:
        with pytest.raises(Refusal, match="survivors signed"):
            devices.answer(Step.UNMASK, node, messages.unmask_request(settings, survivors, few))
    # One signature under many ids does not make a quorum.
    copied = dict.fromkeys(signatures, signatures[1])
    with pytest.raises(Refusal, match="did not sign"):
        devices.answer(Step.UNMASK, node, messages.unmask_request(settings, survivors, copied))


def test_signatures_of_others_than_survivors_do_not_count(fleet: Build) -> None:
    devices = fleet(9, drops=2)
    dead = devices.settings.cohort[8]
    coordinator = devices.run({Step.MASK: [dead]}, until=Step.UNMASK)
    settings = devices.settings
    node = settings.cohort[0]
    survivors, signatures = messages.read_unmask_request(settings, coordinator.requests()[node])
    session = DeviceState.decode(devices.states[node]).sessions[settings.digest]
    signatures[8] = simulated_identity(dead).sign(device.survivor_statement(session, survivors))
    with pytest.raises(Refusal, match="not a survivor"):
        devices.answer(Step.UNMASK, node, messages.unmask_request(settings, survivors, signatures))


@pytest.mark.parametrize("step", [Step.SHARE, Step.MASK, Step.SIGN, Step.UNMASK])
def test_lists_that_are_too_short_are_refused_at_every_stage(step: Step, fleet: Build) -> None:
    """Below n - D the noise would be too small: nothing leaves the device."""
    devices = fleet(9, drops=2)
    coordinator = devices.run(until=step)
    settings = devices.settings
    node = settings.cohort[0]
    request, six = coordinator.requests()[node], list(range(6))
    before = devices.states[node]
    if step is Step.SHARE:
        _, adverts = messages.read_share_request(settings, request)
        request = messages.share_request(settings, six, {i: adverts[i] for i in six[1:]})
    elif step is Step.MASK:
        _, sealed = messages.read_mask_request(settings, request)
        request = messages.mask_request(settings, six, {i: sealed[i] for i in six[1:]})
    elif step is Step.SIGN:
        request = messages.sign_request(settings, six)
    else:
        request = unmask_request(devices, six)
    with pytest.raises(Refusal, match=r"Too few|Fewer than"):
        devices.answer(step, node, request)
    assert devices.states[node] == before


def test_lists_with_strangers_or_without_oneself_are_refused(fleet: Build) -> None:
    devices = fleet(9, drops=2)
    absent = devices.settings.cohort[8]
    coordinator = devices.run({Step.ADVERTISE: [absent]}, until=Step.MASK)
    settings, node = devices.settings, devices.settings.cohort[0]
    alive, sealed = messages.read_mask_request(settings, coordinator.requests()[node])
    wrong = messages.mask_request(settings, [*alive, 8], {**sealed, 8: bytes(keys.SEALED_BYTES)})
    with pytest.raises(Refusal):
        devices.answer(Step.MASK, node, wrong)
    selfless = messages.mask_request(settings, alive[1:], sealed)
    with pytest.raises(Refusal, match="missing among those who shared"):
        devices.answer(Step.MASK, node, selfless)
    stranger = messages.mask_request(settings, [*alive, 8], sealed)
    with pytest.raises(Refusal, match="did not advertise keys here"):
        devices.answer(Step.MASK, node, stranger)
    fewer = dict(list(sealed.items())[1:])
    with pytest.raises(Refusal, match="not those of this device's peers"):
        devices.answer(Step.MASK, node, messages.mask_request(settings, alive, fewer))
    devices.stage(coordinator)
    with pytest.raises(Refusal, match="did not share"):
        devices.answer(Step.SIGN, node, messages.sign_request(settings, range(9)))


def test_key_lists_must_be_those_of_the_peers_and_hold_oneself(fleet: Build) -> None:
    devices = fleet(9, drops=2)
    coordinator = devices.run(until=Step.SHARE)
    settings, node = devices.settings, devices.settings.cohort[0]
    present, adverts = messages.read_share_request(settings, coordinator.requests()[node])
    selfless = messages.share_request(settings, present[1:], adverts)
    with pytest.raises(Refusal, match="missing among those who advertised"):
        devices.answer(Step.SHARE, node, selfless)
    for wrong in (dict(list(adverts.items())[1:]), {**adverts, 0: adverts[1]}):
        with pytest.raises(Refusal, match="not those of this device's peers"):
            devices.answer(Step.SHARE, node, messages.share_request(settings, present, wrong))


@pytest.mark.parametrize("step", [Step.SHARE, Step.MASK])
def test_in_a_ring_too_few_live_neighbours_are_refused(step: Step, fleet: Build) -> None:
    """The cohort is large enough, but the server declares a victim's neighbours lost."""
    devices = fleet(150, drops=20, dim=1)
    settings = devices.settings
    node = settings.cohort[0]
    around = device.peers_of(settings, range(settings.n), 0)
    lost = set(around[: settings.degree + 2 - settings.threshold])
    assert len(lost) <= settings.drops
    kept = [i for i in range(settings.n) if i not in lost]
    coordinator = devices.run(until=step)
    request = coordinator.requests()[node]
    if step is Step.SHARE:
        _, items = messages.read_share_request(settings, request)
        build = messages.share_request
    else:
        _, items = messages.read_mask_request(settings, request)
        build = messages.mask_request
    fewer = {i: item for i, item in items.items() if i not in lost}
    with pytest.raises(Refusal, match="Too few neighbours"):
        devices.answer(step, node, build(settings, kept, fewer))


def test_nothing_is_signed_in_a_round_without_signatures(fleet: Build) -> None:
    devices = fleet(5, consistency=False)
    devices.run(until=Step.UNMASK)
    node = devices.settings.cohort[0]
    with pytest.raises(Refusal, match="without signatures"):
        devices.answer(Step.SIGN, node, messages.sign_request(devices.settings, range(5)))
    with pytest.raises(Refusal, match="announced without them"):
        devices.answer(
            Step.UNMASK,
            node,
            messages.unmask_request(devices.settings, range(5), {1: bytes(64)}),
        )


def test_a_state_of_another_node_is_refused(fleet: Build) -> None:
    devices = fleet(5)
    coordinator = devices.run(until=Step.SHARE)
    node, request = next(iter(coordinator.requests().items()))
    stranger = Node(5, devices.settings.run, SimulationGuard(5))
    with pytest.raises(Refusal, match="not in the cohort"):
        device.share(stranger, devices.states[node], request)


# Another broadcast than hashed.


def test_another_broadcast_than_announced_is_refused(fleet: Build) -> None:
    devices = fleet(4)
    coordinator = devices.run(until=Step.MASK)
    node, request = next(iter(coordinator.requests().items()))
    with pytest.raises(Refusal, match="hash differs"):
        devices.answer(Step.MASK, node, request, model=b"\x22" * 32)


def test_another_model_per_client_gives_garbage_and_no_quorum(fleet: Build) -> None:
    """Keys exchanged before the model was known: a victim is shown a model of its own."""
    devices = fleet(4)
    devices.__init__(replace(devices.settings, broadcast=b""))
    settings = devices.settings
    coordinator = devices.run(until=Step.MASK)
    victim = settings.cohort[2]
    for node, request in coordinator.requests().items():
        model = b"\x22" * 32 if node == victim else b"\x11" * 32
        coordinator.receive(node, devices.answer(Step.MASK, node, request, model))
    coordinator.close()
    for node, request in coordinator.requests().items():
        coordinator.receive(node, devices.answer(Step.SIGN, node, request))
    assert "does not verify" in coordinator.lost[victim]
    signed = coordinator._signatures
    assert len(signed) == 3
    coordinator.close()
    # The three others have a quorum, so they may go on: the sum is masked by the victim's pairs.
    devices.stage(coordinator)
    expected = devices.expected(settings.cohort)
    assert (coordinator.sums[0].total != expected).mean() > 0.9


# The guard: lowered noise, tiny cohort, exhausted budget.


class StrictGuard(SimulationGuard):
    """A policy as an owner would have it, and a record of what it was asked."""

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.asked: list[str] = []
        self.budget = 1

    def admit(self, settings: RoundSettings) -> None:
        self.asked.append("admit")
        if settings.n < 5:
            raise Refusal("The cohort is smaller than 5.")
        if float(settings.application["noise"]) < 10:
            raise Refusal("The noise is too small.")

    def charge(self, settings: RoundSettings) -> None:
        self.asked.append("charge")
        if self.budget == 0:
            raise Refusal("The budget is spent.")
        self.budget -= 1

    def endorse(self, settings: RoundSettings, survivors: tuple[int, ...]) -> None:
        self.asked.append(f"endorse {len(survivors)}")

    def settle(self, settings: RoundSettings, survivors: tuple[int, ...]) -> None:
        self.asked.append(f"settle {len(survivors)}")


def guarded(devices: Any) -> Any:
    devices.nodes = {i: Node(i, node.run, StrictGuard(i)) for i, node in devices.nodes.items()}
    return devices


def test_a_tiny_cohort_is_refused_before_any_key_leaves(fleet: Build) -> None:
    devices = guarded(fleet(4))
    node = devices.settings.cohort[0]
    with pytest.raises(Refusal, match="smaller than 5"):
        devices.answer(Step.ADVERTISE, node, devices.settings.encoded)
    assert devices.states[node] == b""


def test_lowered_noise_is_refused(fleet: Build) -> None:
    devices = guarded(fleet(6))
    low = replace(devices.settings, application={"noise": 1})
    with pytest.raises(Refusal, match="noise"):
        devices.answer(Step.ADVERTISE, low.cohort[0], low.encoded)


def test_the_guard_is_asked_in_order_and_told_who_survived(fleet: Build) -> None:
    devices = guarded(fleet(6, drops=1))
    devices.run({Step.MASK: [devices.settings.cohort[5]]})
    guard = devices.nodes[devices.settings.cohort[0]].guard
    assert guard.asked == ["admit", "charge", "endorse 5", "settle 5"]
    dropped = devices.nodes[devices.settings.cohort[5]].guard
    assert dropped.asked == ["admit"]


def test_without_budget_no_vector_leaves(fleet: Build) -> None:
    devices = guarded(fleet(6))
    coordinator = devices.run(until=Step.MASK)
    node, request = next(iter(coordinator.requests().items()))
    devices.nodes[node].guard.budget = 0
    with pytest.raises(Refusal, match="budget"):
        devices.answer(Step.MASK, node, request)
    stage = DeviceState.decode(devices.states[node]).sessions[devices.settings.digest].stage
    assert stage is Stage.SHARED


# 8. Secrets in the state.


def test_secrets_leave_the_state_as_soon_as_they_are_not_needed(fleet: Build) -> None:
    devices = fleet(5)
    node = devices.settings.cohort[0]
    coordinator = Coordinator(devices.settings, SimulationRoster())
    coordinator.bind(devices.settings.broadcast)

    def session() -> Any:
        return DeviceState.decode(devices.states[node]).sessions[devices.settings.digest]

    devices.stage(coordinator)
    private_c, private_s = session().private_c, session().private_s
    assert len(private_c) == len(private_s) == 32
    devices.stage(coordinator)
    seed = session().seed
    assert private_c not in devices.states[node]
    assert seed in devices.states[node]
    assert private_s in devices.states[node]
    devices.stage(coordinator)
    for secret in (private_c, private_s, seed):
        assert secret not in devices.states[node]
    shares = list(session().shares.values())
    devices.stage(coordinator)
    devices.stage(coordinator)
    assert not any(share[:33] in devices.states[node] for share in shares)
    assert DeviceState.decode(devices.states[node]).sessions == {}


def test_an_abandoned_round_is_forgotten_with_the_next(fleet: Build) -> None:
    devices = fleet(4)
    devices.run(until=Step.MASK)
    node = devices.settings.cohort[0]
    seed = DeviceState.decode(devices.states[node]).sessions[devices.settings.digest].seed
    devices.answer(Step.ADVERTISE, node, replace(devices.settings, round=2).encoded)
    assert seed not in devices.states[node]


# 9. What does not fit the ring.


def test_a_vector_that_does_not_fit_is_refused(fleet: Build, model_hash: bytes) -> None:
    devices = fleet(3, bits=20)
    coordinator = devices.run(until=Step.MASK)
    node, request = next(iter(coordinator.requests().items()))
    ticket = device.open_mask(devices.nodes[node], devices.states[node], request, model_hash)
    good = devices.vectors[node]
    for wrong in (good[:-1], good.astype("<u8"), good | (1 << 20), good.astype(float)):
        with pytest.raises(Refusal):
            device.mask(devices.nodes[node], ticket, wrong)


# 1, 2. The size of the keys.


def test_masks_have_keys_of_128_bits_from_256_bit_secrets() -> None:
    secret, context, model = os.urandom(32), os.urandom(32), os.urandom(32)
    key = keys.pair_mask_key(secret, context, model, 1, 2)
    assert len(key) == 16
    assert key == keys.pair_mask_key(secret, context, model, 2, 1)
    others = {
        keys.pair_mask_key(os.urandom(32), context, model, 1, 2),
        keys.pair_mask_key(secret, os.urandom(32), model, 1, 2),
        keys.pair_mask_key(secret, context, os.urandom(32), 1, 2),
        keys.pair_mask_key(secret, context, model, 1, 3),
        keys.self_mask_key(secret, context, model, 1),
        keys.self_mask_key(secret, context, model, 2),
        keys.self_mask_key(secret, context, os.urandom(32), 1),
        keys.self_mask_key(secret, os.urandom(32), model, 1),
    }
    assert len(others | {key}) == 9


# 10. Bytes.


def test_bytes_per_client_stay_within_the_design(fleet: Build) -> None:
    """n = 100: at most 14.4 kB up and 29.3 kB down beside the vector and the broadcast."""
    devices = fleet(100, drops=5, dim=10, bits=32)
    devices.run()
    node = devices.settings.cohort[0]
    up = sum(len(r) for (_, i), r in devices.replies.items() if i == node) - 40
    down = sum(len(r) for (_, i), r in devices.requests.items() if i == node)
    assert up < 14_400
    assert down < 29_300


def test_a_vector_of_32_bits_takes_at_most_4_1_bytes_per_coordinate(fleet: Build) -> None:
    devices = fleet(3, dim=10_000, bits=32)
    devices.run(until=Step.SIGN)
    assert len(devices.replies[Step.MASK, devices.settings.cohort[0]]) < 4.1 * 10_000


def test_refusals_are_errors_of_this_package() -> None:
    for error in (Refusal, Malformed, SettingsError):
        assert issubclass(error, SecAggError)
