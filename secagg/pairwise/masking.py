"""One-time masks: AES-128-CTR keystreams read as ring elements.

A key serves one (round, pair) or one (round, client) and is used once, so the counter starts at
zero. The vector is walked in blocks of 128 KiB that stay in the cache, and all masks are added to
a block before the next one: the vector is read and written once, whatever the number of masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from ..packing import Ring

KEY_BYTES = 16
BLOCK_BYTES = 128 * 1024
_KEYS_AT_ONCE = 256  # bounds the memory of open ciphers when a server removes many masks
_ZEROS = bytes(BLOCK_BYTES)
_START = bytes(16)


def apply_masks(vector: Ring, add: Sequence[bytes], subtract: Sequence[bytes]) -> None:
    """Add and subtract the mask of every key, in place, modulo the vector's machine type.

    To whoever lacks one of the keys the result is computationally indistinguishable from uniform,
    as long as that key is never used for another vector.
    """
    signed = [(key, np.add) for key in add] + [(key, np.subtract) for key in subtract]
    for start in range(0, len(signed), _KEYS_AT_ONCE):
        _apply(vector, signed[start : start + _KEYS_AT_ONCE])


def _apply(vector: Ring, signed: Sequence[tuple[bytes, np.ufunc]]) -> None:
    streams = [
        (Cipher(algorithms.AES(key), modes.CTR(_START)).encryptor(), operation)
        for key, operation in signed
    ]
    size = min(BLOCK_BYTES, vector.nbytes)
    buffer = bytearray(size + 15)  # update_into asks for one cipher block of slack
    words = np.frombuffer(buffer, dtype=vector.dtype, count=size // vector.itemsize)
    step = BLOCK_BYTES // vector.itemsize
    for start in range(0, len(vector), step):
        block = vector[start : start + step]
        zeros = _ZEROS if block.nbytes == BLOCK_BYTES else bytes(block.nbytes)
        mask = words[: len(block)]
        for stream, operation in streams:
            stream.update_into(zeros, buffer)
            operation(block, mask, out=block)
