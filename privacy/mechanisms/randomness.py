"""A cryptographic stream of random numbers for noise: the AES-128-CTR keystream with a fresh key from the operating
system.

Noise that protects someone must not come from the generators of numpy or torch, because their state can be computed
from their output. It must not come from anything that the server sends either. Only tests and simulations that are
declared reproducible pass a key; `derived_key` makes one.

Gaussians are computed in float64 by the Box-Muller method from 52-bit uniforms. |x| is at most 8.57; the normal
distribution has 1e-17 of its mass beyond that. Floating-point Gaussians are not a mathematically exact mechanism
(Mironov 2012). They are meant for runs with a trusted server. Under secure aggregation the noise is exact integer
noise (`privacy.mechanisms.skellam_sampler`).
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

KEY_BYTES = 16
_BLOCK = 1 << 15  # numbers per step, few enough to stay in the cache


def derived_key(seed: int, *labels: str | int) -> bytes:
    """Return a key computed from (seed, labels) by HKDF-SHA256. Only for tests and for simulations that are declared
    reproducible, because the seed is not secret."""
    # Each label is encoded with its length and type: ("ab", "c"), ("a", "bc"), (1,) and ("1",) must all differ.
    parts = [f"{type(label).__name__}:{label}".encode() for label in labels]
    info = b"fedsketch noise" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    secret = hashlib.sha256(str(int(seed)).encode()).digest()
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


class Stream:
    """Random bytes, 64-bit words, uniform floats and Gaussians. As a context manager it deletes its key at the end.

    >>> with Stream() as stream:
    ...     noise = stream.gaussian(1000)
    """

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and len(key) != KEY_BYTES:
            raise ValueError(f"a stream key has {KEY_BYTES} bytes, not {len(key)}.")
        # Every stream has its own key, so the counter may start at zero.
        cipher = Cipher(
            algorithms.AES(os.urandom(KEY_BYTES) if key is None else key), modes.CTR(bytes(16))
        )
        self._encryptor = cipher.encryptor()
        self._open = True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the key, as far as possible: OpenSSL clears its copy, but Python may have made others."""
        if self._open:
            self._encryptor.finalize()
            del self._encryptor
            self._open = False

    def _fill(self, buffer: NDArray[np.uint64]) -> None:
        if not self._open:
            raise ValueError("this stream is closed; open a new one, and never reuse a key.")
        if buffer.size:
            # Encrypting zeros gives the keystream; update_into writes it in place.
            buffer[:] = 0
            view = buffer.data.cast("B")
            self._encryptor.update_into(view, view)

    def bytes(self, n: int) -> bytes:
        """Return the next n bytes."""
        words = np.empty(-(-n // 8), dtype=np.uint64)
        self._fill(words)
        return words.tobytes()[:n]

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return the next n words of 64 bits."""
        words = np.empty(n, dtype=np.uint64)
        self._fill(words)
        return words

    def uniform(self, n: int) -> NDArray[np.float64]:
        """Return floats strictly between 0 and 1: the 2^52 odd multiples of 2^-53. With one more bit the largest would
        round to 1."""
        return ((self.uint64(n) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def gaussian(self, n: int) -> NDArray[np.float64]:
        """Return independent standard normal numbers (Box-Muller; both numbers of each pair are used)."""
        pairs = (n + 1) // 2
        out = np.empty(2 * pairs)
        for start in range(0, pairs, _BLOCK):
            count = min(_BLOCK, pairs - start)
            u = self.uniform(2 * count)
            radius = np.sqrt(-2.0 * np.log(u[:count]))
            angle = (2.0 * np.pi) * u[count:]
            block = out[2 * start : 2 * (start + count)]
            np.multiply(radius, np.cos(angle), out=block[:count])
            np.multiply(radius, np.sin(angle), out=block[count:])
        return out[:n]
