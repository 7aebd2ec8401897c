"""Real vectors to ring integers on the device, and the sum back to reals on the server.

Guarantee: whatever the rows, what leaves `encode` is a sum of integer vectors, one per privacy unit, each with |q|^2 <= D2^2, checked in
exact integers, plus exact Skellam noise of the plan's variance, modulo 2^b. Reduction and decoding are post-processing. Floating point
decides accuracy only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.mechanisms.encoding_plan import EncodingPlan
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.skellam_sampler import sample_skellam
from fedsketch.privacy.mechanisms.unsafe import UnsafeUpdateError

_NUMBERS_AT_ONCE = 1 << 20  # of the rows, so that a client with many examples needs little memory
_MOST_DRAWS = 1000  # each is accepted with probability at least 1 - exp(-1/2): not reached in the age of the universe


def clip_rows(rows: NDArray[np.floating], max_norm: float) -> NDArray[np.float64]:
    """Every row times min(1, C / its norm), in float64; refuses nan and inf."""
    values = np.asarray(rows, dtype=np.float64)
    largest = np.max(np.abs(values), axis=1, initial=0.0, keepdims=True)
    if not np.isfinite(largest).all():
        raise UnsafeUpdateError(
            "the update holds nan or inf; nothing was released: lower the learning rate or check the data."
        )
    # In units of the row's largest entry, so that no square overflows and no factor underflows.
    unit = np.where(largest > 0.0, largest, 1.0)
    scaled = values / unit
    lengths = np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1.0)
    with np.errstate(over="ignore"):
        fits = lengths <= max_norm / unit
    return np.where(fits | (largest == 0.0), values, scaled * (max_norm / lengths))


def _signs(dim: int, seed: int) -> NDArray[np.float64]:
    """The public random signs of the rotation: the same on every device and on the server."""
    with Stream(derived_key(seed, "rotation", dim)) as stream:
        bits = np.unpackbits(np.frombuffer(stream.bytes(-(-dim // 8)), dtype=np.uint8))[:dim]
    return 1.0 - 2.0 * bits.astype(np.float64)


def _rotated(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    from scipy import fft  # 0.3 s, and only small rings rotate

    rotated: NDArray[np.float64] = fft.dct(values * _signs(values.shape[-1], seed), norm="ortho")
    return rotated


def _unrotated(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    from scipy import fft

    unrotated: NDArray[np.float64] = fft.idct(values, norm="ortho") * _signs(values.size, seed)
    return unrotated


def squared_norms(integers: NDArray[np.int64]) -> NDArray[np.object_] | NDArray[np.int64]:
    """The exact |q|^2 of every row."""
    largest = int(np.max(np.abs(integers), initial=0))
    if largest**2 * integers.shape[1] < 2**63:
        return np.einsum("ij,ij->i", integers, integers)
    exact = integers.astype(object)  # Python integers: slow, and right
    return np.asarray((exact * exact).sum(axis=1))


def round_conditionally(
    values: NDArray[np.float64], bound_squared: int, stream: Stream
) -> NDArray[np.int64]:
    """Stochastic rounding, each row redrawn until |q|^2 <= bound."""
    floor = np.floor(values)
    share = values - floor
    whole = floor.astype(np.int64)
    rounded = whole.copy()
    waiting = np.arange(len(values))
    for _ in range(_MOST_DRAWS):
        draw = stream.uniform(len(waiting) * values.shape[1]).reshape(len(waiting), -1)
        candidate = whole[waiting] + (draw < share[waiting])
        accepted = squared_norms(candidate) <= bound_squared
        rounded[waiting[accepted]] = candidate[accepted]
        waiting = waiting[~accepted]
        if not len(waiting):
            return rounded
    raise UnsafeUpdateError(
        "rounding did not meet the norm bound; nothing was released: the plan does not fit this vector."
    )


def encode(
    rows: NDArray[np.floating], plan: EncodingPlan, stream: Stream, *, rotation_seed: int = 0
) -> NDArray[np.uint64]:
    """Clip, rotate (if the plan says so), scale and round every row, add the rows and the noise, reduce: integers in [0, 2^b).

    A row is what one privacy unit contributes: one vector if that is the client, one per example if that is the example. Each is
    rounded by itself, so that taking one away changes the integer sum by no more than the bound. `rotation_seed` is public and
    the same for all clients of the round; `stream` is this device's own.
    """
    matrix = np.atleast_2d(rows)
    if matrix.shape[1:] != (plan.dim,) or len(matrix) > plan.units:
        raise UnsafeUpdateError(
            f"the plan is for at most {plan.units} rows of {plan.dim} numbers; the local step made {np.shape(rows)}."
        )
    total = sample_skellam(plan.local_variance, plan.dim, stream)
    at_once = max(1, _NUMBERS_AT_ONCE // plan.dim)
    for start in range(0, len(matrix), at_once):
        values = clip_rows(matrix[start : start + at_once], plan.clip)
        if plan.rotate:
            values = _rotated(values, rotation_seed)
        rounded = round_conditionally(values * plan.scale, plan.l2_bound_squared, stream)
        total += rounded.sum(axis=0)
    return total.astype(np.uint64) & np.uint64((1 << plan.bits) - 1)


def decode(
    total: NDArray[np.unsignedinteger], plan: EncodingPlan, *, rotation_seed: int = 0
) -> NDArray[np.float64]:
    """The sum of the clients' vectors (not their mean) from its ring integers."""
    # Shifted to the top of the word and back, the b-bit integer gets its sign.
    unused = 64 - plan.bits
    centred = (total.astype(np.uint64) << np.uint64(unused)).view(np.int64) >> np.int64(unused)
    values = centred.astype(np.float64) / plan.scale
    return _unrotated(values, rotation_seed) if plan.rotate else values
