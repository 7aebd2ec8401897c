"""Shamir's secret sharing of 32-byte secrets over the prime field of 2^256 + 297.

The field is just larger than 32 bytes, so that a secret is one element and a share 33 bytes. Shares
are computed for all points at once, in 64-bit integers. Nothing here is constant time: shares are
computed on the device that knows the secret and joined on the server that may know it, so no
observer of either side's timing is in the threat model.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import Malformed

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
LARGEST_POINT = 2**20 - 1
_LIMBS, _LIMB_BITS = 8, 32
_MASK = 2**_LIMB_BITS - 1
_FOLD = 2**256 - PRIME  # what 2^256 is modulo the prime: -297


def split(secret: bytes, threshold: int, points: Sequence[int]) -> list[bytes]:
    """Return shares of the secret at the given points, any `threshold` of which give it back.

    Fewer shares than `threshold` are independent of the secret (information-theoretically).
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError("A secret has 32 bytes.")
    if not 1 <= threshold <= len(points):
        raise ValueError("The threshold lies between 1 and the number of points.")
    if len(set(points)) != len(points) or not all(0 < x <= LARGEST_POINT for x in points):
        raise ValueError(f"The points are distinct and lie between 1 and {LARGEST_POINT}.")
    constant = int.from_bytes(secret, "big")
    # Highest coefficient first, the secret last, for Horner's rule.
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)] + [constant]
    return [value.to_bytes(SHARE_BYTES, "big") for value in evaluate(coefficients, points)]


def evaluate(coefficients: Sequence[int], points: Sequence[int]) -> list[int]:
    """Return the values of the polynomial at all points modulo the prime, exactly. The highest coefficient comes first.

    Horner's rule on all points at once. A number is eight signed 64-bit limbs of weights 2^(32 i);
    what exceeds 2^256 returns to the lowest limb times -297. Carries are deferred for `steps`
    steps, after which points^steps <= 2^20. So no limb ever leaves 64 bits: between carries limbs
    are below 2^33 in size, products and added coefficients below 2^54, carries below 2^22 and
    297 times a carry below 2^31, which makes limbs below 2^33 again.
    """
    x = np.array(points, dtype=np.int64)
    terms = _limbs_of(coefficients)
    steps = LARGEST_POINT.bit_length() // max(points).bit_length()
    value = np.zeros((_LIMBS, len(points)), dtype=np.int64)
    for start in range(0, len(coefficients), steps):
        for term in terms[start : start + steps]:
            value *= x
            value += term
        carry = value >> _LIMB_BITS
        value &= _MASK
        value[1:] += carry[:-1]
        value[0] += _FOLD * carry[-1]
    result = _integers_of(value)
    # The polynomial is the secret. Python cannot erase its own integers, but these arrays can go.
    for limbs in (terms, value, carry):
        limbs.fill(0)
    return result


def _limbs_of(numbers: Sequence[int]) -> NDArray[np.int64]:
    """Return the limbs of numbers below 2^257, one column of eight for each."""
    packed = b"".join(number.to_bytes(4 * (_LIMBS + 1), "little") for number in numbers)
    limbs = np.frombuffer(packed, dtype="<u4").reshape(-1, _LIMBS + 1, 1).astype(np.int64)
    limbs[:, 0] += _FOLD * limbs[:, -1]
    return limbs[:, :-1]


def _integers_of(value: NDArray[np.int64]) -> list[int]:
    """Return the numbers modulo the prime whose signed limbs are the columns."""
    carry = np.zeros_like(value[0])
    for limb in value:
        limb += carry
        np.right_shift(limb, _LIMB_BITS, out=carry)
        limb &= _MASK
    packed = value.T.astype("<u4").tobytes()
    return [
        (int.from_bytes(packed[at : at + 32], "little") + (over << 256)) % PRIME
        for at, over in zip(range(0, len(packed), 32), carry.tolist(), strict=True)
    ]


def weights(points: Sequence[int]) -> list[int]:
    """Return the Lagrange coefficients at zero. They are computed once for a set of holders and used for all
    secrets."""
    numerators, denominators = [], []
    product = 1
    for point in points:
        product = product * point % PRIME
    for point in points:
        denominator = point
        for other in points:
            if other != point:
                denominator = denominator * (other - point) % PRIME
        numerators.append(product)
        denominators.append(denominator % PRIME)
    inverses = _invert_all(denominators)
    return [top * inverse % PRIME for top, inverse in zip(numerators, inverses, strict=True)]


def _invert_all(values: Sequence[int]) -> list[int]:
    """Return the inverses of all values by Montgomery's trick, which needs one inversion."""
    prefix = [1]
    for value in values:
        prefix.append(prefix[-1] * value % PRIME)
    inverse = pow(prefix[-1], -1, PRIME)
    result = [0] * len(values)
    for i in range(len(values) - 1, -1, -1):
        result[i] = prefix[i] * inverse % PRIME
        inverse = inverse * values[i] % PRIME
    return result


def join(shares: Sequence[bytes], lagrange: Sequence[int]) -> bytes:
    """Return the secret from shares in the order of the points that `lagrange` was computed for."""
    total = 0
    for share, weight in zip(shares, lagrange, strict=True):
        total += int.from_bytes(share, "big") * weight
    total %= PRIME
    if total >> 256:
        raise Malformed("The shares do not belong to one secret.")
    return total.to_bytes(SECRET_BYTES, "big")
