"""Keys of one round: agreement, derivation, and the encryption of shares.

Every device draws two X25519 pairs per round and never uses them again: pair c encrypts shares, pair s seeds the
pairwise masks. They are apart because a dropout makes its neighbours reveal s, while c must stay secret. Every derived
key is bound to the round (`context`, a hash of its settings), to the purpose and to the ordered pair of nodes, and is
used for one message or one mask.
"""

from __future__ import annotations

import hashlib
import os
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..errors import Malformed, Refusal
from .masking import KEY_BYTES
from .shamir import SHARE_BYTES

SHARES_BYTES = 2 * SHARE_BYTES  # a share of the self mask's seed and one of the key s
_NONCE_BYTES = 12
SEALED_BYTES = _NONCE_BYTES + SHARES_BYTES + 16


def _derive(secret: bytes, length: int, label: bytes, *parts: bytes) -> bytes:
    info = b"secagg/1 " + label + b"".join(struct.pack("<I", len(part)) + part for part in parts)
    return HKDF(hashes.SHA256(), length, None, info).derive(secret)


def _pair(one: int, other: int) -> bytes:
    return struct.pack("<QQ", min(one, other), max(one, other))


def share_keys(secret: bytes, context: bytes, me: int, peer: int) -> tuple[bytes, bytes]:
    """Return the keys for the shares that `me` sends to `peer` and receives from it."""
    both = _derive(secret, 64, b"shares", context, _pair(me, peer))
    return (both[:32], both[32:]) if me < peer else (both[32:], both[:32])


def pair_mask_key(secret: bytes, context: bytes, broadcast: bytes, one: int, other: int) -> bytes:
    """Return the seed of the mask between two nodes; the lower id adds it, the higher subtracts it.

    It depends on the hash of what was broadcast: masks of devices that were sent different models
    do not cancel, and a device that is asked twice with different models uses different masks.
    """
    return _derive(secret, KEY_BYTES, b"pair mask", context, broadcast, _pair(one, other))


def self_mask_key(seed: bytes, context: bytes, broadcast: bytes, node: int) -> bytes:
    """Return the key of the mask that a node adds alone, so that a late vector stays hidden."""
    return _derive(seed, KEY_BYTES, b"self mask", context, broadcast, struct.pack("<Q", node))


def seed_commitment(seed: bytes, context: bytes, node: int) -> bytes:
    """Return the hash by which the server notices a wrong share instead of computing a wrong sum."""
    return hashlib.sha256(b"secagg/1 seed" + context + struct.pack("<Q", node) + seed).digest()


def seal(key: bytes, shares: bytes, context: bytes, sender: int, receiver: int) -> bytes:
    """Encrypt the two shares of `sender` for `receiver`.

    The key is used once, but a device whose state was rolled back could share twice under it: a
    random nonce keeps even that safe.
    """
    aad = context + struct.pack("<QQ", sender, receiver)
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, shares, aad)


def unseal(key: bytes, sealed: bytes, context: bytes, sender: int, receiver: int) -> bytes:
    """Return the two shares of `sender`. Refuse if they were altered or are those of another round or node."""
    aad = context + struct.pack("<QQ", sender, receiver)
    try:
        shares = ChaCha20Poly1305(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], aad)
    except InvalidTag as error:
        raise Refusal(f"The shares of node {sender} were altered or belong elsewhere.") from error
    if len(shares) != SHARES_BYTES:
        raise Malformed(f"The shares of node {sender} have a wrong length.")
    return shares
