"""Long-term identities of devices and the roster that pins them.

Each device has one Ed25519 key. The roster maps the ids of the nodes that may take part to their public
keys. A device gets it from its owner, never from the server: it stops a server from putting its own
keys between two devices. One key under two ids would let one device count twice, so a roster refuses
it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from .errors import SettingsError

SIGNATURE_BYTES = 64
ROSTER_FORMAT = "secagg-roster/1"
_CANONICAL = re.compile(r"0|[1-9][0-9]{0,19}")


class Directory(Protocol):
    """Anything that knows the public keys of the nodes."""

    def key_of(self, node: int) -> bytes | None:
        """Return the raw Ed25519 public key of the node, or None if it is unknown."""


class Identity:
    """The Ed25519 key of a device."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Identity:
        """Draw a new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read a key that only its owner may read."""
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise SettingsError(f"Others may read the private key {path}: run chmod 600 on it.")
        try:
            private = load_pem_private_key(path.read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise SettingsError(f"{path} is not an unencrypted PEM private key.") from error
        if not isinstance(private, Ed25519PrivateKey):
            raise SettingsError(f"{path} is not an Ed25519 key: make one with Identity.generate.")
        return cls(private)

    def save(self, path: Path) -> None:
        """Write the key with mode 600; an existing file is never overwritten."""
        pem = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)

    def sign(self, statement: bytes) -> bytes:
        """Return the device's signature over the statement."""
        return self._private.sign(statement)


@lru_cache(maxsize=4096)
def verify(public: bytes, signature: bytes, statement: bytes) -> bool:
    """Return whether the signature is the key's over the statement.

    A pure function of public values, cached because a process that simulates many devices
    verifies the same signatures for each of them.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Roster:
    """The public keys of the nodes that may take part."""

    keys: Mapping[int, bytes]

    def __post_init__(self) -> None:
        if any(not 0 <= node < 2**64 or len(key) != 32 for node, key in self.keys.items()):
            raise SettingsError("A roster maps 64-bit node ids to 32-byte Ed25519 keys.")
        if len(set(self.keys.values())) != len(self.keys):
            raise SettingsError("A key stands under two ids in the roster: give each its own key.")

    def key_of(self, node: int) -> bytes | None:
        """Return the raw Ed25519 public key of the node, or None if it is unknown."""
        return self.keys.get(node)

    def add(self, node: int, public: bytes) -> Roster:
        """Return a roster with one more node. The key of a known node is not replaced silently."""
        if self.keys.get(node, public) != public:
            raise SettingsError(f"Node {node} has another key: remove its entry first.")
        return Roster({**self.keys, node: public})

    @classmethod
    def load(cls, path: Path) -> Roster:
        """Read the file. Raise `SettingsError` if it is not a roster."""
        problem = SettingsError(f"{path} is not a roster of the format {ROSTER_FORMAT}.")
        try:
            document = json.loads(path.read_text(), object_pairs_hook=_unique)
            if document["format"] != ROSTER_FORMAT:
                raise problem
            nodes = document["nodes"].items()
            return cls({_node_id(node): bytes.fromhex(key) for node, key in nodes})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, SettingsError):
                raise
            raise problem from error

    def save(self, path: Path, mode: int = 0o666) -> None:
        """Write the file in one step, so that a reader never sees a part of it. `mode` is what the process allows at
        most."""
        nodes = {str(node): key.hex() for node, key in sorted(self.keys.items())}
        draft = path.with_name(path.name + ".new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps({"format": ROSTER_FORMAT, "nodes": nodes}, indent=1) + "\n")
        draft.replace(path)


def _node_id(text: str) -> int:
    """Read a number in its one canonical form. Python would also accept 01, +1, 1_0, and digits of other scripts."""
    if not _CANONICAL.fullmatch(text):
        raise SettingsError(
            f"{text[:30]!r} is not an id of a node: write ids in the roster as decimal numbers without leading zeros "
            "or signs."
        )
    return int(text)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse JSON objects with repeated keys, of which the last would count silently."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise SettingsError("An id stands twice in the roster: remove one of the entries.")
    return dict(pairs)
