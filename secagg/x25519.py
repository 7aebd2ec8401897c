"""Key agreement between two devices."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from .errors import Refusal

PUBLIC_BYTES = 32


def new_private() -> bytes:
    """Draw a new private key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_of(private: bytes) -> bytes:
    """Return the public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """Return the shared secret. Refuse if the other key is a low-order point."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise Refusal("A peer's public key is not a valid X25519 key.") from error


def load_private(private: bytes) -> X25519PrivateKey:
    """Return the private key in the form in which it is used several times."""
    return X25519PrivateKey.from_private_bytes(private)
