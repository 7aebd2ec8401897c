"""Sums of uploads, computed on the server. A ring is the set of integers modulo 2^bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def real_sum(vectors: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return the sum in float64, added up in the given order."""
    total = np.zeros(vectors[0].shape)
    for vector in vectors:
        total += vector
    return total


def ring_sum(vectors: Sequence[NDArray[Any]], bits: int) -> NDArray[np.float64]:
    """Return the sum modulo 2^bits, decoded to signed integers from -2^(bits-1) to 2^(bits-1) - 1."""
    ring = _modular_sum(vectors)
    # Shifting to the top of the word and back extends the sign of the integer.
    unused = 64 - bits
    return ((ring << np.uint64(unused)).view(np.int64) >> np.int64(unused)).astype(np.float64)


def upload_sum(vectors: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the sum of these uploads, still encoded: ring integers (not yet reduced), or real numbers in float64."""
    return _modular_sum(vectors) if vectors[0].dtype == np.uint64 else real_sum(vectors)


def _modular_sum(vectors: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    total = np.zeros(vectors[0].shape, dtype=np.uint64)
    for vector in vectors:
        total += vector  # modulo 2^64, and therefore also modulo 2^bits
    return total


def into_ring(integers: NDArray[np.int64], bits: int) -> NDArray[np.uint64]:
    """Encode signed integers as ring integers in [0, 2^bits)."""
    return integers.astype(np.uint64) & np.uint64((1 << bits) - 1)
