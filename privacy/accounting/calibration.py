"""Calibration: the smallest noise that meets a privacy budget, found by a monotone search over the accountant.

The accountant has confirmed that the returned noise meets the budget. Noise that is smaller by more than the tolerance
(1e-4 relative) does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from fedsketch.errors import ImpossibleBudgetError
from fedsketch.privacy.accounting import skellam_as_gaussian
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import Release, Skellam

TOLERANCE = 1e-4
"""Relative tolerance of the noise if privacy loss distributions are used: one evaluation takes up to a second."""
FAST_TOLERANCE = 1e-10
"""Relative tolerance of the noise in all other cases."""
LARGEST_NOISE = 1e6

Price = Callable[[Release, int, float], float]
"""(release, count, delta) -> epsilon of `count` such releases."""


def calibrate(
    template: Callable[[float], Release],
    *,
    rounds: int,
    epsilon: float,
    delta: float,
    tight: bool = True,
    largest: float = LARGEST_NOISE,
    price: Price | None = None,
) -> float:
    """Return the smallest noise multiplier z of the sum for which `rounds` releases `template(z)` cost at most
    `epsilon` at `delta`.

    A larger z must make `template(z)` cheaper. With `tight=False` privacy loss distributions are not used for sampled
    Gaussians: this takes milliseconds instead of a few seconds, and gives about a tenth more noise. `price` computes
    epsilon instead of the accountant, if given. An infinite epsilon gives 0.
    """
    if not epsilon > 0.0:
        raise ImpossibleBudgetError(f"epsilon must be positive, not {epsilon}; inf means no noise.")
    if rounds < 1:
        raise ValueError(f"a run has at least one round, not {rounds}.")
    if math.isinf(epsilon):
        return 0.0

    @cache
    def spent(z: float, finely: bool = False) -> float:
        if price is not None:
            return price(template(z), rounds, delta)
        accountant = Accountant(delta)
        accountant.record(template(z), rounds)
        return accountant.epsilon(tight=finely).epsilon

    high = min(1.0, largest)
    while spent(high) > epsilon:
        if high >= largest:
            raise ImpossibleBudgetError(
                _what_is_possible(template, rounds, epsilon, delta, largest)
            )
        high = min(4.0 * high, largest)
    low = high / 4.0
    while spent(low) <= epsilon:
        high, low = low, low / 4.0
        if low < 1e-12:
            return high
    high = _search(spent, epsilon, low, high, FAST_TOLERANCE)
    if tight and spent(high, True) < spent(high):
        # Both epsilons fall with the noise in a similar way, so the slope of the fast one predicts where the tight one
        # meets the budget.
        slope = math.log(spent(0.9 * high) / spent(high)) / -math.log(0.9)
        low = high * max(0.5, (spent(high, True) / epsilon) ** (1.0 / slope))
        while spent(low, True) <= epsilon:
            step = max(0.5, (spent(low, True) / epsilon) ** (1.0 / slope) * (1.0 - TOLERANCE))
            high, low = low, low * step
        high = _search(lambda z: spent(z, True), epsilon, low, high, TOLERANCE)
    return high


def calibrate_skellam(
    template: Callable[[Skellam], Release],
    *,
    l2_sensitivity: float,
    l1_sensitivity: float,
    rounds: int,
    epsilon: float,
    delta: float,
) -> float:
    """Return the smallest variance of the Skellam noise of the SUM, in integer units, with which `rounds` releases
    `template(mechanism)` meet the budget.

    The search varies the noise multiplier of the dominating Gaussian (`skellam_as_gaussian`). This multiplier is
    nearly the same for all resolutions of a ring, so cached results of the accountant can be reused.
    """

    def variance(z: float) -> float:
        return skellam_as_gaussian.variance(z, l2_sensitivity)

    z = calibrate(
        lambda z: template(Skellam(variance(z), l2_sensitivity, l1_sensitivity)),
        rounds=rounds,
        epsilon=epsilon,
        delta=delta,
    )
    return variance(z)


def _search(
    spent: Callable[[float], float], epsilon: float, low: float, high: float, tolerance: float
) -> float:
    """Solve by regula falsi (the Illinois variant) on logarithmic axes, where epsilon is nearly a straight line.
    Returns the end of the interval that meets the budget.

    `spent(low)` must be above epsilon and `spent(high)` not. The search stops when the two ends are closer than
    `tolerance` (relative).
    """

    def excess(z: float) -> float:
        return math.log(min(max(spent(z), 1e-300), 1e300) / epsilon)

    a, b = math.log(low), math.log(high)
    fa, fb = excess(low), min(excess(high), -1e-15)
    side = 0
    while b - a > tolerance:
        c = (fa * b - fb * a) / (fa - fb)
        # Step slightly past the root, so that the next points approach it from both sides.
        c += 0.4 * tolerance if side >= 0 else -0.4 * tolerance
        c = min(max(c, a + 0.2 * tolerance), b - 0.2 * tolerance)
        fc = excess(math.exp(c))
        if fc > 0.0:
            fb = fb / 2.0 if side == 1 else fb
            a, fa, side = c, fc, 1
        else:
            fa = fa / 2.0 if side == -1 else fa
            b, fb, side = c, min(fc, -1e-15), -1
    return math.exp(b)


def _what_is_possible(
    template: Callable[[float], Release], rounds: int, epsilon: float, delta: float, largest: float
) -> str:
    def spent(count: int) -> float:
        accountant = Accountant(delta)
        accountant.record(template(largest), count)
        return accountant.epsilon(tight=False).epsilon

    least = spent(rounds)
    fits, breaks = 0, rounds
    while breaks - fits > 1:
        middle = (fits + breaks) // 2
        fits, breaks = (middle, breaks) if spent(middle) <= epsilon else (fits, middle)
    advice = f"{fits} rounds would fit" if fits else "not even one round fits"
    return (
        f"epsilon {epsilon:g} at delta {delta:g} cannot be reached in {rounds} rounds: the largest noise multiplier "
        f"allowed, {largest:g}, gives {least:.4g}; {advice}. Ask for epsilon {least:.4g} or more, a larger delta, "
        "or fewer rounds."
    )
