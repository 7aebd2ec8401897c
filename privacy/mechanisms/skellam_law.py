"""The probabilities of the Skellam distribution, with error bounds: P(x) = e^-mu I_x(mu). It is the distribution of
the difference of two independent Poisson variables with mean mu / 2 each; its variance is mu.

Its characteristic function at the angle t is exp(-mu (1 - cos t)). The discrete Fourier transform of this function at
N points is the distribution wrapped around a circle of N integers. This is an identity, not an approximation:

    sum over k of P(x + k N) = (1/N) sum over j of w_j cos(2 pi j x / N),    w_j = exp(-mu (1 - cos(2 pi j / N))),
    -N/2 < j <= N/2.

- *Wrapping.* The terms with k != 0 are at distance N - |x| or more from zero, so they sum to at most P(|X| >= N -
  |x|). By Chernoff's bound, a large enough N makes this as small as required (`largest_value`).
- *Truncation.* sin^2(a + b) - sin^2(a) - sin^2(b) = 2 sin(a) sin(b) cos(a + b) >= 0 for a + b <= pi/2, hence
  w_(J+i) <= w_J w_i. So the terms with |j| > J sum to at most w_J times the whole sum at x = 0. The number of
  remaining terms does not grow with mu: N is a few dozen standard deviations, and w_j falls like a Gaussian of width N
  / (2 pi standard deviations).

`exact_pmf` evaluates this in integer arithmetic, to any number of bits. `FloatPmf` evaluates it in float64, for many x
at once.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_GUARD_BITS = 64
_FLOAT_BITS = 56
_ROWS_AT_ONCE = 1024


def largest_value(mu: int, bits: int) -> int:
    """Return the smallest t for which Chernoff's bound P(|X| > t) <= 2 exp(sqrt(t^2 + mu^2) - mu - t asinh(t/mu)) is
    below 2^-bits."""
    wanted = -(bits + 2) * math.log(2.0)  # one bit for the factor 2, one for rounding

    def log_tail(t: float) -> float:
        # sqrt(t^2 + mu^2) - mu without cancellation.
        return t * t / (math.hypot(t, mu) + mu) - t * math.asinh(t / mu)

    low, high = 0, 16
    while log_tail(high) > wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if log_tail(middle) > wanted else (low, middle)
    return high


def exact_pmf(mu: int, x: int, bits: int) -> int:
    """Return P(x) in units of 2^-bits. The error is less than 4 units: at most 1 each for wrapping, truncation and the
    last rounding, and less than 1 for everything else."""
    points = 1 << (abs(x) + largest_value(mu, bits)).bit_length()
    # The error of the integer series is less than 2^20 units of the working precision, which is 2^64 times finer.
    working = bits + _GUARD_BITS
    pi = _pi(working)
    weights = _cosine_weights(mu, points, bits)
    # In units of 2^-(bits + working).
    total = sum(weight * _cos(pi, j * x, points, working) for j, weight in enumerate(weights))
    return total // (points << working)


class FloatPmf:
    """P(x) for arrays of x with |x| <= reach. `reach` is a power of two with P(|X| > reach) < 2^-128. The error is
    less than `error`.

    In units of P(0), the errors are: less than 2^-50 in total from cutting and rounding the weights at 2^-56, less
    than 2^-49 for an angle, a few 2^-53 for numpy's cosine, and 129 x 2^-53 for the sum of at most 129 products.
    Together this is less than 2^-45. `error` is 2^-40 P(0), which leaves room for the cosine of another processor and
    for a few roundings in the caller's comparison.
    """

    def __init__(self, mu: int, reach: int) -> None:
        points = 2 * reach
        weights = _cosine_weights(mu, points, _FLOAT_BITS)
        self._weights = np.array([weight / (points << _FLOAT_BITS) for weight in weights])
        self._j = np.arange(len(weights), dtype=np.uint64)
        self._shift = np.uint64(64 - reach.bit_length())
        self.error = 2.0**-40 * float(self._weights.sum())

    def __call__(self, x: NDArray[np.int64]) -> NDArray[np.float64]:
        out = np.empty(x.shape)
        for start in range(0, len(x), _ROWS_AT_ONCE):
            rows = x[start : start + _ROWS_AT_ONCE].view(np.uint64)
            # This is exactly j x modulo N, shifted to the top of the word. As a signed integer it is the angle in
            # units of pi / 2^63.
            turns = (rows[:, None] * self._j << self._shift).view(np.int64)
            out[start : start + len(rows)] = np.cos(turns * (math.pi / 2.0**63)) @ self._weights
        return out


def _cosine_weights(mu: int, points: int, bits: int) -> list[int]:
    """Return w_0, 2 w_1, 2 w_2, ... in units of 2^-bits, up to the first w_j below one unit or up to j = N/2. The term
    j = N/2 counts once, not twice."""
    working = bits + _GUARD_BITS + mu.bit_length()  # 1 - cos is multiplied by mu
    one, pi = 1 << working, _pi(working)
    weights = [1 << bits]
    for j in range(1, points // 2 + 1):
        weight = _exp_minus(mu * (one - _cos(pi, j, points, working)), working)
        copies = 1 if 2 * j == points else 2
        weights.append(copies * weight >> (working - bits))
        if weight >> (working - bits) == 0:
            break
    return weights


# ---------------------------------------------------------------------- elementary functions
# All in integer arithmetic, in units of 2^-bits.
def _pi(bits: int) -> int:
    """Return pi by Machin's formula: pi = 16 arctan(1/5) - 4 arctan(1/239)."""

    def arctan_of_inverse(n: int) -> int:
        power, total, k = (1 << bits) // n, 0, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power //= n * n
            k += 2
        return total

    return 16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)


def _cos(pi: int, numerator: int, points: int, bits: int) -> int:
    """Return cos(2 pi numerator / points), by Taylor's series for the equivalent angle between 0 and pi."""
    turn = numerator % points
    angle = 2 * pi * min(turn, points - turn) // points
    square = angle * angle >> bits
    term = total = 1 << bits
    k = 0
    while term:
        k += 2
        term = term * square // (k * (k - 1) << bits)
        total += term if k % 4 == 0 else -term
    return total


def _exp_minus(a: int, bits: int) -> int:
    """Return exp(-a): 1 / exp(a / 2^r), by Taylor's series of an argument below 1/256, squared r times."""
    halvings = max(0, a.bit_length() - bits + 8)
    a >>= halvings
    term = total = 1 << bits
    k = 0
    while term:
        k += 1
        term = term * a // (k << bits)
        total += term
    value = (1 << 2 * bits) // total
    for _ in range(halvings):
        value = value * value >> bits
    return value
