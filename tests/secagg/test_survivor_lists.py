"""A server that tells devices different stories about who survived: never both secrets of a peer, never two lists with
a quorum."""

from collections.abc import Callable
from typing import Any

import pytest

from fedsketch.secagg.errors import Refusal
from fedsketch.secagg.guard import SimulationGuard, simulated_identity
from fedsketch.secagg.node import Node
from fedsketch.secagg.pairwise import device, keys, messages
from fedsketch.secagg.pairwise.shamir import SHARE_BYTES
from fedsketch.secagg.pairwise.state import DeviceState
from fedsketch.secagg.server_session import RoundStage

Build = Callable[..., Any]


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
    session = devices.run(until=RoundStage.UNMASK)
    node, request = next(iter(session.requests().items()))
    reply = devices.answer(RoundStage.UNMASK, node, request)
    shares = messages.read_unmask_reply(devices.settings, reply)
    assert len(shares) == 6
    assert len(reply) == 1 + 32 + 4 + 1 + 6 * SHARE_BYTES
    # The second request, with a peer declared dead, finds nothing to reveal.
    other = messages.unmask_request(devices.settings, range(5), {})
    for again in (request, other):
        with pytest.raises(Refusal, match="does not know or has ended"):
            devices.answer(RoundStage.UNMASK, node, again)


def test_which_share_leaves_is_a_function_of_the_list(fleet: Build) -> None:
    devices = fleet(6, drops=2)
    dead = devices.settings.cohort[5]
    session = devices.run({RoundStage.MASK: [dead]}, until=RoundStage.UNMASK)
    node = devices.settings.cohort[0]
    kept = DeviceState.decode(devices.states[node]).sessions[devices.settings.digest].shares
    reply = devices.answer(RoundStage.UNMASK, node, session.requests()[node])
    shares = messages.read_unmask_reply(devices.settings, reply)
    for index, both in kept.items():
        seed_share, key_share = both[:SHARE_BYTES], both[SHARE_BYTES:]
        assert shares[index] == (key_share if index == 5 else seed_share)


# 3. Marking a live client dead; another survivor list per client.


def test_a_client_marked_dead_refuses_and_keeps_its_self_mask(fleet: Build) -> None:
    devices = fleet(7, drops=2)
    devices.run(until=RoundStage.SIGN)
    victim = 6
    rest = [i for i in range(7) if i != victim]
    settings = devices.settings
    with pytest.raises(Refusal, match="missing among the survivors"):
        devices.answer(
            RoundStage.SIGN, settings.cohort[victim], messages.sign_request(settings, rest)
        )
    # The others take it for a dropout: they reveal its key s, and no share of its seed.
    kept = {
        i: DeviceState.decode(devices.states[settings.cohort[i]])
        .sessions[settings.digest]
        .shares[victim]
        for i in rest
    }
    for i in rest:
        devices.answer(RoundStage.SIGN, settings.cohort[i], messages.sign_request(settings, rest))
    request = unmask_request(devices, rest)
    for i in rest:
        reply = devices.answer(RoundStage.UNMASK, settings.cohort[i], request)
        revealed = messages.read_unmask_reply(settings, reply)[victim]
        assert revealed == kept[i][SHARE_BYTES:]
        assert revealed != kept[i][:SHARE_BYTES]
    with pytest.raises(Refusal):
        devices.answer(RoundStage.UNMASK, settings.cohort[victim], request)


def test_different_survivor_lists_never_both_get_a_quorum(fleet: Build) -> None:
    """The server shows half the devices a list with the victim, half one without it."""
    devices = fleet(8, drops=2)
    devices.run(until=RoundStage.SIGN)
    settings = devices.settings
    everyone, without = list(range(8)), list(range(7))
    signatures: dict[int, dict[int, bytes]] = {8: {}, 7: {}}
    for i in range(8):
        shown = everyone if i % 2 or i == 7 else without
        reply = devices.answer(
            RoundStage.SIGN, settings.cohort[i], messages.sign_request(settings, shown)
        )
        signatures[len(shown)][i] = messages.read_sign_reply(settings, reply)
    for shown in (everyone, without):
        request = messages.unmask_request(settings, shown, signatures[len(shown)])
        for i in range(8):
            with pytest.raises(Refusal):
                devices.answer(RoundStage.UNMASK, settings.cohort[i], request)


def test_another_list_than_the_signed_one_is_refused(fleet: Build) -> None:
    devices = fleet(7, drops=2)
    devices.run(until=RoundStage.UNMASK)
    shorter = list(range(6))
    request = unmask_request(devices, shorter)
    with pytest.raises(Refusal, match="not the one that this device signed"):
        devices.answer(RoundStage.UNMASK, devices.settings.cohort[0], request)


def test_a_device_signs_one_list_per_round(fleet: Build) -> None:
    devices = fleet(7, drops=2)
    devices.run(until=RoundStage.UNMASK)
    with pytest.raises(Refusal, match="out of order or repeated"):
        devices.answer(
            RoundStage.SIGN,
            devices.settings.cohort[0],
            messages.sign_request(devices.settings, range(6)),
        )


def test_without_signatures_two_lists_still_do_not_give_both_secrets(fleet: Build) -> None:
    """Semi-honest mode against a server that splits its lists: below the threshold on one side."""
    devices = fleet(9, drops=3, consistency=False)
    devices.run(until=RoundStage.UNMASK)
    settings, victim = devices.settings, 8
    seed_shares = key_shares = 0
    for i in range(9):
        says_alive = i == victim or i % 2 == 0
        shown = [j for j in range(9) if j != victim or says_alive]
        devices.answer(
            RoundStage.UNMASK, settings.cohort[i], messages.unmask_request(settings, shown, {})
        )
        seed_shares += says_alive
        key_shares += not says_alive
    assert min(seed_shares, key_shares) < settings.threshold
    assert seed_shares + key_shares < 2 * settings.threshold


@pytest.mark.parametrize("count", [3, 4, 5])
def test_too_few_or_repeated_or_foreign_signatures_are_refused(count: int, fleet: Build) -> None:
    devices = fleet(9, drops=2)
    session = devices.run(until=RoundStage.UNMASK)
    settings = devices.settings
    node = settings.cohort[0]
    survivors, signatures = messages.read_unmask_request(settings, session.requests()[node])
    few = dict(list(signatures.items())[:count])
    if count < settings.quorum:
        with pytest.raises(Refusal, match="survivors signed"):
            devices.answer(
                RoundStage.UNMASK, node, messages.unmask_request(settings, survivors, few)
            )
    # One signature under many ids does not make a quorum.
    copied = dict.fromkeys(signatures, signatures[1])
    with pytest.raises(Refusal, match="did not sign"):
        devices.answer(
            RoundStage.UNMASK, node, messages.unmask_request(settings, survivors, copied)
        )


def test_signatures_of_others_than_survivors_do_not_count(fleet: Build) -> None:
    devices = fleet(9, drops=2)
    dead = devices.settings.cohort[8]
    session = devices.run({RoundStage.MASK: [dead]}, until=RoundStage.UNMASK)
    settings = devices.settings
    node = settings.cohort[0]
    survivors, signatures = messages.read_unmask_request(settings, session.requests()[node])
    session = DeviceState.decode(devices.states[node]).sessions[settings.digest]
    signatures[8] = simulated_identity(dead).sign(device.survivor_statement(session, survivors))
    with pytest.raises(Refusal, match="not a survivor"):
        devices.answer(
            RoundStage.UNMASK, node, messages.unmask_request(settings, survivors, signatures)
        )


@pytest.mark.parametrize(
    "step", [RoundStage.SHARE, RoundStage.MASK, RoundStage.SIGN, RoundStage.UNMASK]
)
def test_lists_that_are_too_short_are_refused_at_every_stage(
    step: RoundStage, fleet: Build
) -> None:
    """Below n - D the noise would be too small: nothing leaves the device."""
    devices = fleet(9, drops=2)
    session = devices.run(until=step)
    settings = devices.settings
    node = settings.cohort[0]
    request, six = session.requests()[node], list(range(6))
    before = devices.states[node]
    if step is RoundStage.SHARE:
        _, adverts = messages.read_share_request(settings, request)
        request = messages.share_request(settings, six, {i: adverts[i] for i in six[1:]})
    elif step is RoundStage.MASK:
        _, sealed = messages.read_mask_request(settings, request)
        request = messages.mask_request(settings, six, {i: sealed[i] for i in six[1:]})
    elif step is RoundStage.SIGN:
        request = messages.sign_request(settings, six)
    else:
        request = unmask_request(devices, six)
    with pytest.raises(Refusal, match=r"Too few|Fewer than"):
        devices.answer(step, node, request)
    assert devices.states[node] == before


def test_lists_with_strangers_or_without_oneself_are_refused(fleet: Build) -> None:
    devices = fleet(9, drops=2)
    absent = devices.settings.cohort[8]
    session = devices.run({RoundStage.ADVERTISE: [absent]}, until=RoundStage.MASK)
    settings, node = devices.settings, devices.settings.cohort[0]
    alive, sealed = messages.read_mask_request(settings, session.requests()[node])
    wrong = messages.mask_request(settings, [*alive, 8], {**sealed, 8: bytes(keys.SEALED_BYTES)})
    with pytest.raises(Refusal):
        devices.answer(RoundStage.MASK, node, wrong)
    selfless = messages.mask_request(settings, alive[1:], sealed)
    with pytest.raises(Refusal, match="missing among those who shared"):
        devices.answer(RoundStage.MASK, node, selfless)
    stranger = messages.mask_request(settings, [*alive, 8], sealed)
    with pytest.raises(Refusal, match="did not advertise keys here"):
        devices.answer(RoundStage.MASK, node, stranger)
    fewer = dict(list(sealed.items())[1:])
    with pytest.raises(Refusal, match="not those of this device's peers"):
        devices.answer(RoundStage.MASK, node, messages.mask_request(settings, alive, fewer))
    devices.stage(session)
    with pytest.raises(Refusal, match="did not share"):
        devices.answer(RoundStage.SIGN, node, messages.sign_request(settings, range(9)))


def test_key_lists_must_be_those_of_the_peers_and_hold_oneself(fleet: Build) -> None:
    devices = fleet(9, drops=2)
    session = devices.run(until=RoundStage.SHARE)
    settings, node = devices.settings, devices.settings.cohort[0]
    present, adverts = messages.read_share_request(settings, session.requests()[node])
    selfless = messages.share_request(settings, present[1:], adverts)
    with pytest.raises(Refusal, match="missing among those who advertised"):
        devices.answer(RoundStage.SHARE, node, selfless)
    for wrong in (dict(list(adverts.items())[1:]), {**adverts, 0: adverts[1]}):
        with pytest.raises(Refusal, match="not those of this device's peers"):
            devices.answer(RoundStage.SHARE, node, messages.share_request(settings, present, wrong))


@pytest.mark.parametrize("step", [RoundStage.SHARE, RoundStage.MASK])
def test_in_a_ring_too_few_live_neighbours_are_refused(step: RoundStage, fleet: Build) -> None:
    """The cohort is large enough, but the server declares a victim's neighbours lost."""
    devices = fleet(150, drops=20, dim=1, consistency=False)
    settings = devices.settings
    node = settings.cohort[0]
    around = device.peers_of(settings, range(settings.n), 0)
    lost = set(around[: settings.degree + 2 - settings.threshold])
    assert len(lost) <= settings.drops
    kept = [i for i in range(settings.n) if i not in lost]
    session = devices.run(until=step)
    request = session.requests()[node]
    if step is RoundStage.SHARE:
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
    devices.run(until=RoundStage.UNMASK)
    node = devices.settings.cohort[0]
    with pytest.raises(Refusal, match="without signatures"):
        devices.answer(RoundStage.SIGN, node, messages.sign_request(devices.settings, range(5)))
    with pytest.raises(Refusal, match="announced without them"):
        devices.answer(
            RoundStage.UNMASK,
            node,
            messages.unmask_request(devices.settings, range(5), {1: bytes(64)}),
        )


def test_a_state_of_another_node_is_refused(fleet: Build) -> None:
    devices = fleet(5)
    session = devices.run(until=RoundStage.SHARE)
    node, request = next(iter(session.requests().items()))
    stranger = Node(5, devices.settings.run, SimulationGuard(5))
    with pytest.raises(Refusal, match="not in the cohort"):
        device.share(stranger, devices.states[node], request)
