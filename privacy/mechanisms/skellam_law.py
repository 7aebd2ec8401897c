"""The Skellam probabilities with error bounds: P(x) = e^-mu I_x(mu), the difference of two Poissons of mean mu / 2
each.

The characteristic function of the law at the angle t is exp(-mu (1 - cos t)). Its discrete Fourier transform with N
points is the law wrapped around a circle of N integers, which is an identity and no approximation:

    sum over k of P(x + k N) = (1/N) sum over j of w_j cos(2 pi j x / N),    w_j = exp(-mu (1 - cos(2 pi j / N))),
    -N/2 < j <= N/2.

- *Wrapping.* The terms with k != 0 lie at distance N - |x| or more from zero, so they sum to at most P(|X| >= N - |x|),
  which Chernoff's bound makes as small as one likes (`largest_value`).
- *Truncation.* sin^2(a + b) - sin^2(a) - sin^2(b) = 2 sin(a) sin(b) cos(a + b) >= 0 where a + b <= pi/2, hence w_(J+i)
  <= w_J w_i. So the terms with |j| > J sum to at most w_J times the whole sum at x = 0. The number of terms that are
  left does not grow with mu: N is a few dozen standard deviations, and w_j falls like a Gaussian whose width is N / (2
  pi standard deviations).

`exact_pmf` evaluates this in integers, to as many bits as asked for; `FloatPmf` in float64, for many x at once.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_GUARD_BITS = 64
_FLOAT_BITS = 56
_ROWS_AT_ONCE = 1024


def largest_value(mu: int, bits: int) -> int:
    """The least t whose Chernoff bound, P(|X| > t) <= 2 exp(sqrt(t^2 + mu^2) - mu - t asinh(t/mu)), is below
    2^-bits."""
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
    """P(x) in units of 2^-bits, wrong by less than 4 units: wrapping, truncation and the last rounding at most 1 each,
    the rest below 1."""
    points = 1 << (abs(x) + largest_value(mu, bits)).bit_length()
    # The steps of the integer series are wrong by less than 2^20 units of the working precision, which is 2^64 times
    # finer.
    working = bits + _GUARD_BITS
    pi = _pi(working)
    weights = _cosine_weights(mu, points, bits)
    total = sum(
        weight * _cos(pi, j * x, points, working) for j, weight in enumerate(weights)
    )  # of 2^(bits + working)
    return total // (points << working)


class FloatPmf:
    """P(x) for arrays of x with |x| <= reach, where P(|X| > reach) < 2^-128 and reach is a power of two; wrong by less
    than `error`.

    In units of P(0): the weights are cut and rounded at 2^-56, which sums to less than 2^-50. An angle is wrong by less
    than 2^-49, numpy's cosine of it by a few 2^-53, and the sum of at most 129 products by 129 x 2^-53. That is less
    than 2^-45 together. `error` is 2^-40 P(0): there is room for another processor's cosine, and for the few roundings
    of whoever compares with it.
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
            # j x modulo N exactly, shifted to the top of the word: as a signed integer it is the angle in units of pi /
            # 2^63.
            turns = (rows[:, None] * self._j << self._shift).view(np.int64)
            out[start : start + len(rows)] = np.cos(turns * (math.pi / 2.0**63)) @ self._weights
        return out


def _cosine_weights(mu: int, points: int, bits: int) -> list[int]:
    """w_0, 2 w_1, 2 w_2, ... in units of 2^-bits, up to the first w_j below one unit, or to j = N/2, which counts
    once."""
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


# ---------------------------------------------------------------------- elementary functions in integers, in units of
# 2^-bits
def _pi(bits: int) -> int:
    """Machin: pi = 16 arctan(1/5) - 4 arctan(1/239)."""

    def arctan_of_inverse(n: int) -> int:
        power, total, k = (1 << bits) // n, 0, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power //= n * n
            k += 2
        return total

    return 16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)


def _cos(pi: int, numerator: int, points: int, bits: int) -> int:
    """cos(2 pi numerator / points) by Taylor's series, of an angle between 0 and pi."""
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
    """exp(-a): 1 / exp(a / 2^r) by Taylor's series of an argument below 1/256, squared r times."""
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
