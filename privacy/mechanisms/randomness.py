"""A cryptographic stream of random numbers for noise: the AES-128-CTR keystream under a fresh key from the operating
system.

Noise that protects someone must not come from numpy's or torch's generators, whose state can be found from their
output, nor from anything the server sends. A key is passed in only by tests and by simulations that say they are
reproducible; make it with `derived_key`.

Gaussians are made in float64 by Box-Muller from 52-bit uniforms: |x| reaches 8.57, beyond which the normal law has
1e-17 of its mass. Floating-point Gaussians are not a mathematically exact mechanism (Mironov 2012): they serve runs
whose server is trusted; under secure aggregation the noise is exact integer noise
(`privacy.mechanisms.skellam_sampler`).
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
_BLOCK = 1 << 15  # numbers per step: what is worked on stays in cache


def derived_key(seed: int, *labels: str | int) -> bytes:
    """A key that is a function of (seed, labels): HKDF-SHA256. For tests and labelled simulations only: the seed is no
    secret."""
    # Length-prefixed, with the type: ("ab", "c"), ("a", "bc"), (1,) and ("1",) must all differ.
    parts = [f"{type(label).__name__}:{label}".encode() for label in labels]
    info = b"fedsketch noise" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    secret = hashlib.sha256(str(int(seed)).encode()).digest()
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


class Stream:
    """Uniform bytes, words and floats, and Gaussians; a context manager that forgets its key.

    >>> with Stream() as stream:
    ...     noise = stream.gaussian(1000)
    """

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and len(key) != KEY_BYTES:
            raise ValueError(f"a stream key has {KEY_BYTES} bytes, not {len(key)}.")
        # One key is one stream, so the counter may start at zero.
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
        """Forget the key. Best effort: Python may have copied it, and OpenSSL clears its own copy."""
        if self._open:
            self._encryptor.finalize()
            del self._encryptor
            self._open = False

    def _fill(self, buffer: NDArray[np.uint64]) -> None:
        if not self._open:
            raise ValueError("this stream is closed; open another one, never reuse a key.")
        if buffer.size:
            # Encrypting zeros gives the keystream; update_into writes it in place.
            buffer[:] = 0
            view = buffer.data.cast("B")
            self._encryptor.update_into(view, view)

    def bytes(self, n: int) -> bytes:
        words = np.empty(-(-n // 8), dtype=np.uint64)
        self._fill(words)
        return words.tobytes()[:n]

    def uint64(self, n: int) -> NDArray[np.uint64]:
        words = np.empty(n, dtype=np.uint64)
        self._fill(words)
        return words

    def uniform(self, n: int) -> NDArray[np.float64]:
        """Floats strictly between 0 and 1: the 2^52 odd multiples of 2^-53 (one bit more, and the largest would round
        to 1)."""
        return ((self.uint64(n) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def gaussian(self, n: int) -> NDArray[np.float64]:
        """Independent standard normals (Box-Muller, both of each pair)."""
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
