"""Shamir's secret sharing of 32-byte secrets over the prime field of 2^256 + 297.

The field is just larger than 32 bytes, so that a secret is one element and a share 33 bytes. The
arithmetic is on Python integers, which is not constant time: shares are computed on the device
that knows the secret and joined on the server that may know it, so no observer of either side's
timing is in the threat model.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from fedsketch.secagg.errors import Malformed

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
_REDUCE_EVERY = 8  # Horner steps between reductions: the points are small, so the sum grows slowly


def split(secret: bytes, threshold: int, points: Sequence[int]) -> list[bytes]:
    """Shares of the secret at the given points, any `threshold` of which give it back.

    Fewer shares than `threshold` are independent of the secret (information-theoretically).
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError("A secret has 32 bytes.")
    if not 1 <= threshold <= len(points):
        raise ValueError("The threshold lies between 1 and the number of points.")
    if len(set(points)) != len(points) or not all(0 < point < 2**32 for point in points):
        raise ValueError("The points are distinct and lie between 1 and 2^32 - 1.")
    constant = int.from_bytes(secret, "big")
    # Highest coefficient first, the secret last, for Horner's rule.
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)] + [constant]
    return [_evaluate(coefficients, point).to_bytes(SHARE_BYTES, "big") for point in points]


def _evaluate(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for step, coefficient in enumerate(coefficients, start=1):
        value = value * point + coefficient
        if step % _REDUCE_EVERY == 0:
            value %= PRIME
    return value % PRIME


def weights(points: Sequence[int]) -> list[int]:
    """Lagrange coefficients at zero; computed once for a set of holders and used for all secrets."""
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
    """Montgomery's trick: one inversion for all values."""
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
    """The secret from shares in the order of the points that `lagrange` was computed for."""
    total = 0
    for share, weight in zip(shares, lagrange, strict=True):
        total += int.from_bytes(share, "big") * weight
    total %= PRIME
    if total >> 256:
        raise Malformed("The shares do not belong to one secret.")
    return total.to_bytes(SECRET_BYTES, "big")
