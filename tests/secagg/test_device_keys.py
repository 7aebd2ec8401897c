"""A server that gives devices weak settings or keys of its own making: each is refused, or gives nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from fedsketch.secagg import x25519
from fedsketch.secagg.errors import Refusal, SettingsError
from fedsketch.secagg.guard import SimulationGuard, simulated_identity
from fedsketch.secagg.identity import Identity, Roster
from fedsketch.secagg.node import Node
from fedsketch.secagg.pairwise import device, messages
from fedsketch.secagg.pairwise.settings import PairwiseSettings
from fedsketch.secagg.server_session import RoundStage
from fedsketch.secagg.x25519 import PUBLIC_BYTES

Build = Callable[..., Any]
Make = Callable[..., PairwiseSettings]


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
    weak = object.__new__(PairwiseSettings)  # a server does not run our checks
    for name in settings.__dataclass_fields__:
        weak.__dict__[name] = getattr(settings, name)
    weak.__dict__[place] = value
    with pytest.raises(SettingsError, match=what):
        devices.answer(RoundStage.ADVERTISE, settings.cohort[0], weak.encoded)


def test_duplicate_ids_in_the_cohort_are_refused(fleet: Build) -> None:
    devices = fleet(6)
    settings = devices.settings
    weak = object.__new__(PairwiseSettings)
    for name in settings.__dataclass_fields__:
        weak.__dict__[name] = getattr(settings, name)
    weak.__dict__["cohort"] = (settings.cohort[0],) * 2 + settings.cohort[2:]
    with pytest.raises(SettingsError, match="distinct"):
        devices.answer(RoundStage.ADVERTISE, settings.cohort[0], weak.encoded)


def test_a_peer_that_repeats_a_key_is_refused(fleet: Build) -> None:
    """Two ids behind one key pair would give one holder two shares."""
    devices = fleet(4)
    session = devices.run(until=RoundStage.SHARE)
    node = devices.settings.cohort[0]
    present, adverts = messages.read_share_request(devices.settings, session.requests()[node])
    copied = adverts[1][: messages.PAIR_BYTES]
    peer = devices.settings.cohort[2]
    statement = messages.key_statement(devices.settings.digest, peer, copied)
    adverts[2] = copied + simulated_identity(peer).sign(statement)
    request = messages.share_request(devices.settings, present, adverts)
    with pytest.raises(Refusal, match="same key"):
        devices.answer(RoundStage.SHARE, node, request)


# 6. Substituted keys.


def test_substituted_keys_are_refused(fleet: Build) -> None:
    devices = fleet(4)
    session = devices.run(until=RoundStage.SHARE)
    node = devices.settings.cohort[0]
    present, adverts = messages.read_share_request(devices.settings, session.requests()[node])
    evil = x25519.public_of(x25519.new_private()) + x25519.public_of(x25519.new_private())
    statement = messages.key_statement(devices.settings.digest, devices.settings.cohort[1], evil)
    for signature in (adverts[1][messages.PAIR_BYTES :], Identity.generate().sign(statement)):
        forged = {**adverts, 1: evil + signature}
        request = messages.share_request(devices.settings, present, forged)
        with pytest.raises(Refusal, match="not signed by it"):
            devices.answer(RoundStage.SHARE, node, request)


def test_keys_signed_for_other_settings_are_refused(fleet: Build) -> None:
    """Keys of an earlier round, or of a round shown differently to another device."""
    devices, others = fleet(4), fleet(4, round=2)
    session, other = devices.run(until=RoundStage.SHARE), others.run(until=RoundStage.SHARE)
    node = devices.settings.cohort[0]
    present, adverts = messages.read_share_request(devices.settings, session.requests()[node])
    _, old = messages.read_share_request(others.settings, other.requests()[node])
    request = messages.share_request(devices.settings, present, {**adverts, 1: old[1]})
    with pytest.raises(Refusal, match="not signed by it for these settings"):
        devices.answer(RoundStage.SHARE, node, request)


def test_low_order_keys_are_refused(fleet: Build) -> None:
    devices = fleet(3)
    session = devices.run(until=RoundStage.SHARE)
    node, peer = devices.settings.cohort[0], devices.settings.cohort[1]
    present, adverts = messages.read_share_request(devices.settings, session.requests()[node])
    zero = bytes(PUBLIC_BYTES) + adverts[1][32:64]
    statement = messages.key_statement(devices.settings.digest, peer, zero)
    forged = {**adverts, 1: zero + simulated_identity(peer).sign(statement)}
    with pytest.raises(Refusal, match="X25519"):
        devices.answer(
            RoundStage.SHARE, node, messages.share_request(devices.settings, present, forged)
        )


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
    session = devices.run(until=RoundStage.MASK)
    one, two = devices.settings.cohort[:2]
    alive, mine = messages.read_mask_request(devices.settings, session.requests()[one])
    _, theirs = messages.read_mask_request(devices.settings, session.requests()[two])
    swapped = messages.mask_request(devices.settings, alive, {**mine, 3: theirs[3]})
    with pytest.raises(Refusal, match="altered or belong elsewhere"):
        devices.answer(RoundStage.MASK, one, swapped)
    flipped = bytearray(mine[3])
    flipped[5] ^= 1
    request = messages.mask_request(devices.settings, alive, {**mine, 3: bytes(flipped)})
    with pytest.raises(Refusal, match="altered or belong elsewhere"):
        devices.answer(RoundStage.MASK, one, request)


def test_sharing_twice_from_one_state_does_not_repeat_a_nonce(fleet: Build) -> None:
    """A state that was rolled back must not make two messages under one key and nonce."""
    devices = fleet(3)
    session = devices.run(until=RoundStage.SHARE)
    node, request = next(iter(session.requests().items()))
    before = devices.states[node]
    nonces = set()
    for _ in range(2):
        devices.states[node] = before
        reply = devices.answer(RoundStage.SHARE, node, request)
        _, sealed = messages.read_share_reply(devices.settings, reply)
        nonces |= {ciphertext[:12] for ciphertext in sealed.values()}
    assert len(nonces) == 4
