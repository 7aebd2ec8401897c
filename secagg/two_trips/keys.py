"""The keys of an epoch: each device's own pair, and one secret per pair of devices, which moves on from round to round.

A device draws an X25519 pair for an epoch and signs its public half with its identity. Two devices derive a secret k(0)
from their pairs. The secret of a round inside the epoch follows from the one before, never the other way: whoever gets
a device's memory learns nothing about rounds before.
"""

from __future__ import annotations

import hashlib
import struct

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..identity import SIGNATURE_BYTES
from ..x25519 import PUBLIC_BYTES, agree

ADVERT_BYTES = PUBLIC_BYTES + SIGNATURE_BYTES
KEY_BYTES = 32
ABSENT = bytes(PUBLIC_BYTES)
"""Stands for the public key of a device that gave none."""

# Every use of a secret begins with it and 16 bytes that say what for.
_NEXT = b"secagg/2 next   "


def key_statement(run: int, epoch: int, node: int, public: bytes) -> bytes:
    """Return what a device signs about its key of an epoch."""
    return b"secagg/2 key" + struct.pack("<QQQ", run, epoch, node) + public


def pair_key(
    private: X25519PrivateKey, run: int, epoch: int, me: tuple[int, bytes], peer: tuple[int, bytes]
) -> bytes:
    """Return the secret k(0) of two devices, each given by its id and its public key."""
    (low, low_public), (high, high_public) = sorted((me, peer))
    info = b"secagg/2 pair" + struct.pack("<QQQQ", run, epoch, low, high) + low_public + high_public
    return HKDF(hashes.SHA256(), KEY_BYTES, None, info).derive(agree(private, peer[1]))


def moved_on(key: bytes, steps: int) -> bytes:
    """Return the secret so many rounds later."""
    for _ in range(steps):
        key = hashlib.shake_256(key + _NEXT).digest(KEY_BYTES)
    return key
