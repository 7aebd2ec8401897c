"""Masks are AES-CTR keystreams, and hide a vector byte by byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedsketch.secagg.packing import ring_dtype
from fedsketch.secagg.pairwise.masking import BLOCK_BYTES, apply_masks
from fedsketch.secagg.server_session import RoundStage

# chi-square with 255 degrees of freedom exceeds this with probability 1e-9 (computed with
# scipy.stats.chi2.isf); 57 tests are made here, so the false-alarm rate is below 1e-6.
LIMIT = 414.6


def chi_square(data: bytes) -> float:
    counts = np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256)
    expected = len(data) / 256
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_masks_are_the_keystream_across_blocks(bits: int, extra: int) -> None:
    dtype = ring_dtype(bits)
    dim = 2 * BLOCK_BYTES // dtype.itemsize + extra
    key = os.urandom(16)
    vector = np.full(dim, 3, dtype=dtype)
    apply_masks(vector, [key], [])
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    expected = np.frombuffer(stream.update(bytes(vector.nbytes)), dtype=dtype) + dtype.type(3)
    np.testing.assert_array_equal(vector, expected)


def test_added_and_subtracted_masks_cancel() -> None:
    keys = [os.urandom(16) for _ in range(600)]
    vector = np.arange(100, dtype="<u4")
    apply_masks(vector, keys, [])
    assert (vector != np.arange(100)).any()
    apply_masks(vector, [], keys[::-1])
    np.testing.assert_array_equal(vector, np.arange(100))


@pytest.mark.parametrize("bits", [16, 32, 40, 64])
def test_masked_vectors_look_uniform_byte_by_byte(bits: int, fleet: Callable[..., Any]) -> None:
    """A vector of zeros, after masking: each byte position against the uniform distribution."""
    devices = fleet(3, bits=bits, dim=40_000)
    for vector in devices.vectors.values():
        vector[:] = 0
    devices.run(until=RoundStage.SIGN)
    for node in devices.settings.cohort:
        packed = devices.replies[RoundStage.MASK, node][33:]
        width = bits // 8
        for position in range(width):
            assert chi_square(packed[position::width]) < LIMIT


def test_two_rounds_and_two_clients_never_share_a_mask(fleet: Callable[..., Any]) -> None:
    """No 8-byte window at the same place repeats (by chance: below 1e-13)."""
    seen: set[tuple[int, bytes]] = set()
    total = 0
    for round_ in range(1, 6):
        devices = fleet(4, bits=64, dim=20, round=round_)
        for vector in devices.vectors.values():
            vector[:] = 0
        devices.run(until=RoundStage.SIGN)
        for node in devices.settings.cohort:
            packed = devices.replies[RoundStage.MASK, node][33:]
            for place in range(20):
                seen.add((place, packed[8 * place : 8 * place + 8]))
                total += 1
    assert len(seen) == total


def test_the_same_keys_with_another_model_give_another_mask(
    fleet: Callable[..., Any], model_hash: bytes
) -> None:
    """A device asked twice with different broadcasts does not reuse its pad."""
    devices = fleet(3, bits=64, dim=8)
    without_hash = type(devices.settings)(**{**vars_of(devices.settings), "broadcast": b""})
    devices = type(devices)(without_hash)
    session = devices.run(until=RoundStage.MASK)
    node, request = next(iter(session.requests().items()))
    before = devices.states[node]
    one = devices.answer(RoundStage.MASK, node, request, model_hash)
    devices.states[node] = before
    two = devices.answer(RoundStage.MASK, node, request, b"\x22" * 32)
    words = [np.frombuffer(reply[33:], dtype="<u8") for reply in (one, two)]
    assert not (words[0] == words[1]).any()


def vars_of(settings: Any) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}
