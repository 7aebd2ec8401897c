"""The bytes of each message of the protocol, and what is signed.

Requests go from the server to a device and replies back; both start with their kind and the hash
of the round's settings. Positions are those in the cohort. The request of the first stage is the
encoding of the settings themselves.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping

from ..errors import Malformed
from ..identity import SIGNATURE_BYTES
from ..wire import HASH_BYTES, MessageKind, Reader, Writer
from ..x25519 import PUBLIC_BYTES
from .keys import SEALED_BYTES
from .settings import PairwiseSettings
from .shamir import SHARE_BYTES

PAIR_BYTES = 2 * PUBLIC_BYTES
ADVERT_BYTES = PAIR_BYTES + SIGNATURE_BYTES


def key_statement(digest: bytes, node: int, public: bytes) -> bytes:
    """Return what a device signs about its fresh keys."""
    return b"secagg/1 keys" + digest + struct.pack("<Q", node) + public


def survivor_statement(context: bytes, broadcast: bytes, alive: bytes, survivors: bytes) -> bytes:
    """Return what a device signs about who is in the sum, under which keys and of which broadcast."""
    lists = hashlib.sha256(struct.pack("<I", len(alive)) + alive + survivors).digest()
    return b"secagg/1 survivors" + context + broadcast + lists


def advertise_reply(settings: PairwiseSettings, advert: bytes) -> bytes:
    """Return the reply to the settings: the device's fresh keys and its signature."""
    return Writer(MessageKind.ADVERTISE_REPLY, settings.digest).raw(advert).done()


def read_advertise_reply(settings: PairwiseSettings, data: bytes) -> bytes:
    """Return the keys and the signature in such a reply."""
    reader = _open(settings, data, MessageKind.ADVERTISE_REPLY)
    advert = reader.raw(ADVERT_BYTES)
    reader.end()
    return advert


def share_request(
    settings: PairwiseSettings, present: Iterable[int], adverts: Mapping[int, bytes]
) -> bytes:
    """Return the request for shares: who has advertised keys, and the signed keys of the device's peers."""
    out = Writer(MessageKind.SHARE_REQUEST, settings.digest).members(settings.n, present)
    return out.table(settings.n, adverts).done()


def read_share_request(
    settings: PairwiseSettings, data: bytes
) -> tuple[tuple[int, ...], dict[int, bytes]]:
    """Return who has advertised keys, and the signed keys of the device's peers."""
    reader = _open(settings, data, MessageKind.SHARE_REQUEST)
    present, adverts = reader.members(settings.n), reader.table(settings.n, ADVERT_BYTES)
    reader.end()
    return present, adverts


def share_reply(
    settings: PairwiseSettings, commitment: bytes, sealed: Mapping[int, bytes]
) -> bytes:
    """Return the reply: a commitment to the seed, and the encrypted shares by the peers' positions."""
    out = Writer(MessageKind.SHARE_REPLY, settings.digest).raw(commitment)
    return out.table(settings.n, sealed).done()


def read_share_reply(settings: PairwiseSettings, data: bytes) -> tuple[bytes, dict[int, bytes]]:
    """Return the commitment and the encrypted shares in such a reply."""
    reader = _open(settings, data, MessageKind.SHARE_REPLY)
    commitment, sealed = reader.raw(HASH_BYTES), reader.table(settings.n, SEALED_BYTES)
    reader.end()
    return commitment, sealed


def mask_request(
    settings: PairwiseSettings, alive: Iterable[int], sealed: Mapping[int, bytes]
) -> bytes:
    """Return the request for the masked vector: who has shared, and the encrypted shares for this device."""
    out = Writer(MessageKind.MASK_REQUEST, settings.digest).members(settings.n, alive)
    return out.table(settings.n, sealed).done()


def read_mask_request(
    settings: PairwiseSettings, data: bytes
) -> tuple[tuple[int, ...], dict[int, bytes]]:
    """Return who has shared, and the encrypted shares for this device."""
    reader = _open(settings, data, MessageKind.MASK_REQUEST)
    alive, sealed = reader.members(settings.n), reader.table(settings.n, SEALED_BYTES)
    reader.end()
    return alive, sealed


def mask_reply(settings: PairwiseSettings, packed: bytes) -> bytes:
    """Return the reply: the masked vector."""
    return Writer(MessageKind.MASK_REPLY, settings.digest).raw(packed).done()


def read_mask_reply(settings: PairwiseSettings, data: bytes) -> memoryview:
    """Return the packed vector in such a reply."""
    return _open(settings, data, MessageKind.MASK_REPLY).rest()


def sign_request(settings: PairwiseSettings, survivors: Iterable[int]) -> bytes:
    """Return the request to sign the survivor list."""
    return Writer(MessageKind.SIGN_REQUEST, settings.digest).members(settings.n, survivors).done()


def read_sign_request(settings: PairwiseSettings, data: bytes) -> tuple[int, ...]:
    """Return the survivor list in such a request."""
    reader = _open(settings, data, MessageKind.SIGN_REQUEST)
    survivors = reader.members(settings.n)
    reader.end()
    return survivors


def sign_reply(settings: PairwiseSettings, signature: bytes) -> bytes:
    """Return the reply: the signature on the survivor list."""
    return Writer(MessageKind.SIGN_REPLY, settings.digest).raw(signature).done()


def read_sign_reply(settings: PairwiseSettings, data: bytes) -> bytes:
    """Return the signature in such a reply."""
    reader = _open(settings, data, MessageKind.SIGN_REPLY)
    signature = reader.raw(SIGNATURE_BYTES)
    reader.end()
    return signature


def unmask_request(
    settings: PairwiseSettings, survivors: Iterable[int], signatures: Mapping[int, bytes]
) -> bytes:
    """Return the request for shares of peers: the survivor list, and the signatures on it."""
    out = Writer(MessageKind.UNMASK_REQUEST, settings.digest).members(settings.n, survivors)
    return out.table(settings.n, signatures).done()


def read_unmask_request(
    settings: PairwiseSettings, data: bytes
) -> tuple[tuple[int, ...], dict[int, bytes]]:
    """Return the survivor list, and the signatures on it."""
    reader = _open(settings, data, MessageKind.UNMASK_REQUEST)
    survivors, signatures = reader.members(settings.n), reader.table(settings.n, SIGNATURE_BYTES)
    reader.end()
    return survivors, signatures


def unmask_reply(settings: PairwiseSettings, shares: Mapping[int, bytes]) -> bytes:
    """Return the reply: one share per peer, by the peers' positions."""
    return Writer(MessageKind.UNMASK_REPLY, settings.digest).table(settings.n, shares).done()


def read_unmask_reply(settings: PairwiseSettings, data: bytes) -> dict[int, bytes]:
    """Return the shares in such a reply."""
    reader = _open(settings, data, MessageKind.UNMASK_REPLY)
    shares = reader.table(settings.n, SHARE_BYTES)
    reader.end()
    return shares


def _open(settings: PairwiseSettings, data: bytes, kind: MessageKind) -> Reader:
    reader = Reader(data, kind)
    if reader.raw(HASH_BYTES) != settings.digest:
        raise Malformed("The message belongs to another round.")
    return reader
