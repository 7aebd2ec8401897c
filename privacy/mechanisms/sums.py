"""Sums of uploads, on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def real_sum(vectors: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """In float64, in the order given."""
    total = np.zeros(vectors[0].shape)
    for vector in vectors:
        total += vector
    return total


def ring_sum(vectors: Sequence[NDArray[Any]], bits: int) -> NDArray[np.float64]:
    """Modulo 2^bits, as the integers between -2^(bits-1) and 2^(bits-1) that it stands for."""
    ring = _modular_sum(vectors)
    # Shifted to the top of the word and back, the b-bit integer gets its sign.
    unused = 64 - bits
    return ((ring << np.uint64(unused)).view(np.int64) >> np.int64(unused)).astype(np.float64)


def upload_sum(vectors: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """What stands for these uploads: integers of a ring, or real numbers in float64."""
    return _modular_sum(vectors) if vectors[0].dtype == np.uint64 else real_sum(vectors)


def _modular_sum(vectors: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    total = np.zeros(vectors[0].shape, dtype=np.uint64)
    for vector in vectors:
        total += vector  # modulo 2^64, and so modulo 2^b
    return total


def into_ring(integers: NDArray[np.int64], bits: int) -> NDArray[np.uint64]:
    """Signed integers as those of the ring that stand for them."""
    return integers.astype(np.uint64) & np.uint64((1 << bits) - 1)
