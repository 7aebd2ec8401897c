"""What a device keeps, forgets, and sends: secrets in its state, sizes of keys, vectors and messages."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fedsketch.secagg.errors import Malformed, Refusal, SecAggError, SettingsError
from fedsketch.secagg.guard import SimulationRoster
from fedsketch.secagg.pairwise import device, keys
from fedsketch.secagg.pairwise.server_session import PairwiseSession
from fedsketch.secagg.pairwise.state import DeviceState
from fedsketch.secagg.server_session import RoundStage

Build = Callable[..., Any]


# 8. Secrets in the state.


def test_secrets_leave_the_state_as_soon_as_they_are_not_needed(fleet: Build) -> None:
    devices = fleet(5)
    node = devices.settings.cohort[0]
    session = PairwiseSession(devices.settings, SimulationRoster())
    session.bind(devices.settings.broadcast)

    def held() -> Any:
        return DeviceState.decode(devices.states[node]).sessions[devices.settings.digest]

    devices.stage(session)
    private_c, private_s = held().private_c, held().private_s
    assert len(private_c) == len(private_s) == 32
    devices.stage(session)
    seed = held().seed
    assert private_c not in devices.states[node]
    assert seed in devices.states[node]
    assert private_s in devices.states[node]
    devices.stage(session)
    for secret in (private_c, private_s, seed):
        assert secret not in devices.states[node]
    shares = list(held().shares.values())
    devices.stage(session)
    devices.stage(session)
    assert not any(share[:33] in devices.states[node] for share in shares)
    assert DeviceState.decode(devices.states[node]).sessions == {}


def test_an_abandoned_round_is_forgotten_with_the_next(fleet: Build) -> None:
    devices = fleet(4)
    devices.run(until=RoundStage.MASK)
    node = devices.settings.cohort[0]
    seed = DeviceState.decode(devices.states[node]).sessions[devices.settings.digest].seed
    devices.answer(RoundStage.ADVERTISE, node, replace(devices.settings, round=2).encoded)
    assert seed not in devices.states[node]


# 9. What does not fit the ring.


def test_a_vector_that_does_not_fit_is_refused(fleet: Build, model_hash: bytes) -> None:
    devices = fleet(3, bits=20)
    session = devices.run(until=RoundStage.MASK)
    node, request = next(iter(session.requests().items()))
    ticket = device.open_mask(devices.nodes[node], devices.states[node], request, model_hash)
    good = devices.vectors[node]
    for wrong in (good[:-1], good.astype("<u8"), good | (1 << 20), good.astype(float)):
        with pytest.raises(Refusal):
            device.mask(ticket, wrong)


def test_a_peer_whose_mask_key_is_no_key_is_found_before_the_charge(
    fleet: Build, model_hash: bytes
) -> None:
    """A colluding client could else make its peers pay for a vector that never leaves."""
    devices = fleet(4)
    session = devices.run(until=RoundStage.MASK)
    node, request = next(iter(session.requests().items()))
    memory = DeviceState.decode(devices.states[node])
    session = memory.sessions[devices.settings.digest]
    index, known = next(iter(session.peers.items()))
    session.peers[index] = bytes(32) + known[32:]  # a point of low order
    with pytest.raises(Refusal, match="not a valid X25519 key"):
        device.open_mask(devices.nodes[node], memory.encode(), request, model_hash)


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
    devices.run(until=RoundStage.SIGN)
    assert len(devices.replies[RoundStage.MASK, devices.settings.cohort[0]]) < 4.1 * 10_000


def test_refusals_are_errors_of_this_package() -> None:
    for error in (Refusal, Malformed, SettingsError):
        assert issubclass(error, SecAggError)
